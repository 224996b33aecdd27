"""Who waits for whom: on the page of a lock, and in the terminal."""

import contextlib
import json
from queue import SimpleQueue
from threading import Thread

import pytest

from django_redislock import LockError, locks, waits
from django_redislock.admin import ActiveLockAdmin
from django_redislock.lock_types import acquisition
from tests.commands import call
from tests.fast.command.conftest import facts
from tests.pages import lock_page, round_trips, rows_of, words_of
from tests.tools import wait_until

DEADLOCK = "Each of 2 waits for a lock that the next one holds"


class Execution:
    """A thread that acquires one lock after the other, and waits for each."""

    def __init__(self, thread_name):
        self.name = thread_name
        self._wanted = SimpleQueue()
        self._asked = []
        self._thread = Thread(target=self._run, name=thread_name, daemon=True)
        self._thread.start()

    def _run(self):
        with contextlib.suppress(LockError), contextlib.ExitStack() as held:
            while lock := self._wanted.get():
                held.enter_context(lock)

    def holds(self, lock):
        self._ask(lock)
        wait_until(lambda: self.name in [each.holder.thread for each in holders_of(lock)])

    def waits_for(self, lock):
        self._ask(lock)
        wait_until(lambda: self.name in [each.holder.thread for each in locks.queue(lock.name)])

    def _ask(self, lock):
        self._asked.append(lock)
        self._wanted.put(lock)

    def end(self):
        self._wanted.put(None)
        while self._thread.is_alive():
            for lock in self._asked:
                locks.force_release(lock.name)
            self._thread.join(0.05)


def holders_of(lock):
    info = locks.get(lock.name)
    return info.holders if info else ()


@pytest.fixture
def execute():
    """Start executions, which end with the test."""
    started = []

    def begin(thread_name):
        started.append(Execution(thread_name))
        return started[-1]

    yield begin
    for execution in started:
        execution.end()


def mutex(name, **options):
    return locks.lock(name, **{"timeout": 30, "blocking_timeout": 60} | options)


@pytest.fixture
def cross(execute):
    """Let two executions wait for each other."""

    def begin(make=mutex):
        left, right = execute("left"), execute("right")
        left.holds(make("a"))
        right.holds(make("b"))
        left.waits_for(make("b"))
        right.waits_for(make("a"))

    return begin


def waits_on(viewer, name):
    """Return each row of the page: the waiter, what it holds, the lock, and its holder."""
    rows = rows_of(lock_page(viewer, name), "waits")
    return [(thread_of(row[0]), row[1], row[2], thread_of(row[3])) for row in rows]


def thread_of(text):
    return text.partition("(")[2].partition(")")[0]


def test_a_thread_that_waits_for_another_one_of_the_same_name_is_no_deadlock(viewer, execute):
    holder, waiter = execute("consumer"), execute("consumer")
    holder.holds(mutex("a"))
    waiter.waits_for(mutex("a"))
    assert "deadlock" not in words_of(lock_page(viewer, "a")).lower()
    assert "deadlock" not in call("show", "a").lower()


def test_a_page_shows_the_chain_of_waits(viewer, execute):
    root, middle, last = execute("root"), execute("middle"), execute("last")
    root.holds(mutex("stock"))
    middle.holds(mutex("basket"))
    middle.waits_for(mutex("stock"))
    last.holds(mutex("cart"))
    last.waits_for(mutex("basket"))

    chain = [("last", "cart", "basket", "middle"), ("middle", "basket", "stock", "root")]
    assert waits_on(viewer, "basket") == chain
    assert waits_on(viewer, "stock") == chain
    assert waits_on(viewer, "cart") == []  # nobody waits for it
    assert "Deadlock" not in words_of(lock_page(viewer, "stock"))
    shown = call("show", "stock")
    assert "Who waits for whom" in shown
    assert "Deadlock" not in shown
    assert [each["also_holds"] for each in facts("show", "stock")["chain"]] == [
        ["cart"],
        ["basket"],
    ]
    assert not facts("show", "stock")["is_deadlock"]


def test_waiters_without_another_lock_make_no_chain(viewer, execute):
    execute("root").holds(mutex("stock"))
    execute("first").waits_for(mutex("stock"))
    execute("second").waits_for(mutex("stock"))

    assert waits_on(viewer, "stock") == []
    assert "Who waits for whom" not in call("show", "stock")
    assert facts("show", "stock")["chain"] == []


def test_a_cycle_is_called_a_deadlock(viewer, cross):
    cross()
    rows = {("left", "a", "b", "right"), ("right", "b", "a", "left")}

    for name in "ab":
        assert DEADLOCK in words_of(lock_page(viewer, name))
        assert DEADLOCK in call("show", name)
        assert facts("show", name)["is_deadlock"]
        assert {*waits_on(viewer, name)} == rows


def test_a_thread_that_waits_for_its_own_lock_is_a_deadlock(viewer, execute):
    execution = execute("alone")
    execution.holds(mutex("a"))
    execution.waits_for(mutex("a"))

    assert "Deadlock: The waiter holds this lock itself" in words_of(lock_page(viewer, "a"))
    assert waits_on(viewer, "a") == [("alone", "a", "a", "alone")]


def test_a_lock_behind_a_deadlock_shows_it(viewer, cross, execute):
    cross()
    behind = execute("behind")
    behind.holds(mutex("c"))
    behind.waits_for(mutex("a"))
    execute("last").waits_for(mutex("c"))

    assert DEADLOCK in words_of(lock_page(viewer, "c"))
    assert waits_on(viewer, "c")[0] == ("last", "-", "c", "behind")


def test_a_cycle_that_another_holder_can_end_is_no_deadlock(viewer, cross, execute):
    def make(name):
        return locks.semaphore(name, 2, timeout=30, blocking_timeout=60)

    others = execute("third"), execute("fourth")
    others[0].holds(make("a"))
    others[1].holds(make("b"))
    cross(make)

    assert [row[:3] for row in waits_on(viewer, "a")] == [("left", "a", "b"), ("right", "b", "a")]
    assert "Deadlock" not in words_of(lock_page(viewer, "a"))


def test_readers_and_a_writer_are_a_deadlock(viewer, execute):
    left, right = execute("left"), execute("right")
    left.holds(locks.read_lock("prices", timeout=30))
    execute("third").holds(locks.read_lock("prices", timeout=30))
    right.holds(mutex("stock"))
    right.waits_for(locks.write_lock("prices", timeout=30, blocking_timeout=60))
    left.waits_for(mutex("stock"))

    assert DEADLOCK in words_of(lock_page(viewer, "stock"))


def test_a_reader_behind_a_writer_is_part_of_a_deadlock(viewer, execute):
    left, right = execute("left"), execute("right")
    left.holds(locks.read_lock("prices", timeout=30))
    execute("writer").waits_for(locks.write_lock("prices", timeout=30, blocking_timeout=60))
    right.holds(mutex("stock"))
    right.waits_for(locks.read_lock("prices", timeout=30, blocking_timeout=60))

    assert "Deadlock" not in words_of(lock_page(viewer, "prices"))
    left.waits_for(mutex("stock"))

    assert DEADLOCK in words_of(lock_page(viewer, "prices"))
    assert facts("show", "stock")["is_deadlock"]
    assert {*waits_on(viewer, "prices")} == {
        ("writer", "-", "prices", "left"),
        ("right", "stock", "prices", "left"),
        ("left", "prices", "stock", "right"),
    }


def test_two_processes_of_the_same_host_and_pid_are_not_confused(viewer, execute, monkeypatch):
    made = acquisition.payload_text
    process = "first"

    def payload_of_another_process(*args, **options):
        return json.dumps(json.loads(made(*args, **options)) | {"process": process})

    monkeypatch.setattr(acquisition, "payload_text", payload_of_another_process)
    one = execute("same name")
    one.holds(mutex("a"))
    process = "second"
    two = execute("same name")
    two.holds(mutex("b"))
    two.waits_for(mutex("a"))

    assert waits_on(viewer, "a") == [("same name", "b", "a", "same name")]
    assert "Deadlock" not in words_of(lock_page(viewer, "a"))


def test_a_wait_that_began_after_the_hold_was_read_is_left_out(execute):
    execution = execute("left")
    execution.holds(mutex("a"))
    execute("right").holds(mutex("b"))
    infos = locks.page().infos
    execution.waits_for(mutex("b"))  # it could have released the other lock before

    found = waits.read_dependencies(locks, [*infos, locks.get("b")], "b")

    assert found.chain("b") == []


def test_locks_that_the_user_may_not_see_are_in_no_chain(viewer, cross, monkeypatch):
    def may_view(self, request, obj=None):
        return obj is None or obj.name == "a"

    cross()
    monkeypatch.setattr(ActiveLockAdmin, "has_view_permission", may_view, raising=False)

    page = lock_page(viewer, "a")

    assert page.status_code == 200
    assert rows_of(page, "waits") == []


def test_a_chain_costs_three_more_requests(cross):
    cross()
    info = locks.get("a")
    waits.chain_of(locks, info)  # now the server knows the scripts

    with round_trips() as asked:
        found = waits.chain_of(locks, info)

    assert len(found.deadlock) == 2
    assert len(asked) == 3


def test_a_lock_without_waiters_costs_no_request(hold):
    hold("a")

    with round_trips() as asked:
        assert waits.chain_of(locks, locks.get("a")).waits == []

    assert len(asked) == 1
