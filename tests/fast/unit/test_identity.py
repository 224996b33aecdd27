"""The process id, the holder payload, and whether a holder is still alive."""

import asyncio
import gc
import os
import socket
import threading
import weakref

import pytest
from greenlet import greenlet

from django_redislock import identity
from django_redislock.identity import (
    SharedOwner,
    caller,
    child_id,
    is_alive,
    parse_payload,
    payload_text,
    process_id,
)
from django_redislock.snapshots import Holder
from tests.tools import Child


def test_a_payload_is_parsed_as_it_was_written() -> None:
    payload = parse_payload(payload_text({"order": [1, "ä"]}, renewed=True, on_conflict="skip"))
    holder = Holder(
        host=socket.gethostname(),
        pid=os.getpid(),
        thread=threading.current_thread().name,
        process=process_id(),
        number=payload.holder.number,
    )
    assert payload == (holder, {"order": [1, "ä"]}, True, "skip", False)


async def test_another_greenlet_is_not_the_asyncio_task(monkeypatch: pytest.MonkeyPatch) -> None:
    # gevent replaces this function, too. Each greenlet of a thread sees its event loop and task.
    get_ident = threading.get_ident
    monkeypatch.setattr(threading, "get_ident", lambda: get_ident())
    assert caller() == (asyncio.current_task(), True)
    assert greenlet(caller).switch() == (threading.current_thread(), False)


FORKED = """
import _thread, os, threading, weakref
from django_redislock.identity import child_id, current_owner, is_alive, process_id

owners, go, started = [], threading.Event(), threading.Event()
def foreign():
    owners.append(current_owner())
    started.set()
    go.wait()
_thread.start_new_thread(foreign, ())
started.wait()
own = process_id()
pid = os.fork()
if not pid:
    os.write(1, f"child {process_id()} {is_alive(weakref.ref(owners[0]))}\\n".encode())
    if not os.fork():
        os.write(1, f"grandchild {process_id()}\\n".encode())
        os._exit(0)
    os.wait()
    os._exit(0)
os.waitpid(pid, 0)
assert process_id() == own
say(f"parent {own} {child_id(own, pid)} {is_alive(weakref.ref(owners[0]))}")
hear()
"""


def test_a_forked_process_has_an_id_that_its_parent_knows_and_no_foreign_threads() -> None:
    with Child(FORKED, PYTHONWARNINGS="ignore") as parent:
        child, has_thread = parent.expect("child").split()
        grandchild = parent.expect("grandchild")
        own, expected_child, parent_has_thread = parent.expect("parent").split()
    assert child == expected_child
    assert (has_thread, parent_has_thread) == ("False", "True")
    assert len({own, child, grandchild, process_id()}) == 4
    assert {len(own), len(child), len(grandchild)} == {16}


def test_a_fork_that_python_did_not_see_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "_process", (0, "0123456789abcdef"))
    payload = parse_payload(payload_text({}, renewed=True))
    assert payload.holder.process == child_id("0123456789abcdef", os.getpid())


def test_a_shared_owner_is_alive_as_long_as_its_object() -> None:
    owner = SharedOwner()
    reference = weakref.ref(owner)
    assert is_alive(reference)
    del owner
    gc.collect()
    assert not is_alive(reference)
