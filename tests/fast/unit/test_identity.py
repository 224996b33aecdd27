"""The process id, the holder payload, and whether a holder is still alive."""

import asyncio
import gc
import json
import os
import socket
import subprocess
import sys
import threading
import weakref
from typing import Any

import pytest
from greenlet import greenlet

from django_redislock.identity import (
    SharedOwner,
    caller,
    is_alive,
    parse_payload,
    payload_text,
    process_id,
)
from django_redislock.snapshots import Holder
from tests.tools import Child

GOOD: dict[str, Any] = {
    "host": "h",
    "pid": 1,
    "thread": "t",
    "task_name": "n",
    "task_id": "i",
    "process": "p",
    "metadata": {},
}


def test_a_payload_is_parsed_as_it_was_written() -> None:
    payload = parse_payload(payload_text({"order": [1, "ä"]}, renewed=True, on_conflict="skip"))
    thread = threading.current_thread().name
    holder = Holder(
        host=socket.gethostname(),
        pid=os.getpid(),
        thread=thread,
        process=process_id(),
        number=payload.holder.number,
    )
    assert payload == (holder, {"order": [1, "ä"]}, True, "skip", False)


async def test_an_asyncio_task_is_identified_by_its_name() -> None:
    task = asyncio.current_task()
    assert task
    task.set_name("import")
    assert parse_payload(payload_text({}, renewed=True)).holder.thread == "import"


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "3", '"h"', "[" * 100_000])
def test_a_text_that_is_no_json_object_is_an_empty_payload(text: str) -> None:
    assert parse_payload(text) == (Holder(), {}, False, "", False)


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("host", None),
        ("pid", True),
        ("task_id", {}),
        ("on_conflict", 1),
        ("metadata", [1]),
    ],
)
def test_a_field_of_another_type_is_left_out(part: str, value: object) -> None:
    info = parse_payload(json.dumps(GOOD | {part: value}))
    parts = {name: good for name, good in GOOD.items() if name not in (part, "metadata")}
    assert info == (Holder(**parts), {}, False, "", False)


async def test_another_greenlet_is_not_the_asyncio_task(monkeypatch: pytest.MonkeyPatch) -> None:
    # gevent replaces this function, too. Each greenlet of a thread sees its event loop and task.
    get_ident = threading.get_ident
    monkeypatch.setattr(threading, "get_ident", lambda: get_ident())
    assert caller() == (asyncio.current_task(), True)
    assert greenlet(caller).switch() == (threading.current_thread(), False)


FORKED = """
import _thread, os, threading, weakref
from django_redislock.identity import current_owner, is_alive

owners, go = [], threading.Event()
def foreign():
    owners.append(current_owner())
    started.set()
    go.wait()
started = threading.Event()
_thread.start_new_thread(foreign, ())
started.wait()
pid = os.fork()
if pid == 0:
    os.write(1, f"child {is_alive(weakref.ref(owners[0]))}\\n".encode())
    os._exit(0)
os.waitpid(pid, 0)
say(f"parent {is_alive(weakref.ref(owners[0]))}")
"""


def test_a_thread_that_python_did_not_start_is_not_alive_in_a_forked_child() -> None:
    with Child(FORKED, PYTHONWARNINGS="ignore") as parent:
        assert parent.expect("child") == "False"
        assert parent.expect("parent") == "True"


def test_a_shared_owner_is_alive_as_long_as_its_object() -> None:
    owner = SharedOwner()
    reference = weakref.ref(owner)
    assert is_alive(reference)
    del owner
    gc.collect()
    assert not is_alive(reference)


PROCESS_IDS = """
import os
from django_redislock.identity import child_id, process_id

def of_child(function):
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        os.write(write, function().encode())
        os._exit(0)
    os.waitpid(pid, 0)
    return pid, os.read(read, 200).decode()

def of_own_child():
    return of_child(process_id)[1]

own = process_id()
pid, child = of_child(process_id)
assert child == child_id(own, pid)
assert process_id() == own
grandchild = of_child(of_own_child)[1]
assert len({own, child, grandchild}) == 3
print(own)
"""


def test_a_child_process_has_an_id_of_its_own_that_its_parent_knows() -> None:
    run = [sys.executable, "-c", PROCESS_IDS]
    ids = {subprocess.run(run, check=True, capture_output=True).stdout for _ in range(2)}
    assert len(ids) == 2
    assert all(len(each.strip()) == 16 for each in ids)
