"""Who waits for whom: on the page of a lock, on the dashboard, and in the terminal."""

import contextlib
from queue import SimpleQueue
from threading import Thread

import pytest

from django_redislock import LockError, locks
from django_redislock.admin import ActiveLockAdmin
from tests.commands import call
from tests.fast.command.conftest import facts
from tests.pages import DASHBOARD, lock_page, rows_of, words_of
from tests.tools import wait_until

pytestmark = pytest.mark.usefixtures("empty_history")

MAKERS = {
    "read": locks.read_lock,
    "write": locks.write_lock,
    "pool": lambda name, **options: locks.semaphore(name, 2, **options),
}


def lock_of(text):
    """Return the lock of a text like `stock`, which is a mutex, or `read:prices`."""
    kind, _, name = text.rpartition(":")
    return MAKERS.get(kind, locks.lock)(name, timeout=30, blocking_timeout=60)


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

    def holds(self, text):
        self._ask(text, lambda name: info.holders if (info := locks.get(name)) else ())

    def waits(self, text):
        self._ask(text, locks.queue)

    def _ask(self, text, those):
        """Acquire a lock, and return when the thread is one of those who hold or wait."""
        lock = lock_of(text)
        self._asked.append(lock)
        self._wanted.put(lock)
        wait_until(lambda: self.name in [each.holder.thread for each in those(lock.name)])

    def end(self):
        self._wanted.put(None)
        while self._thread.is_alive():
            for lock in self._asked:
                locks.force_release(lock.name)
            self._thread.join(0.05)


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


@pytest.fixture
def story(execute):
    """Let each thread of the steps hold a lock or wait for one."""

    def tell(steps):
        threads = {}
        for step in steps.split(","):
            name, action, lock = step.split()
            threads[name] = threads.get(name) or execute(name)
            getattr(threads[name], action)(lock)

    return tell


def is_deadlock(viewer, name):
    """Return whether there is a deadlock, according to each place that says so."""
    found = {
        "Deadlock" in words_of(lock_page(viewer, name)),
        "Deadlock" in call("show", name),
        facts("show", name)["is_deadlock"],
    }
    assert len(found) == 1
    return found.pop()


CROSS = "left holds a, right holds b, left waits b, right waits a"

BEHIND_A_WRITER = """left holds read:prices, writer waits write:prices, right holds stock,
    right waits read:prices"""

CASES = {
    # The steps, the lock whose page is read, whether there is a deadlock, and the waits shown.
    "a cycle": (CROSS, "a", True, 2),
    "a thread and itself": ("alone holds a, alone waits a", "a", True, 1),
    "all holders of a semaphore": (
        """left holds pool:a, third holds pool:a, right holds b, left waits b, third waits b,
        right waits pool:a""",
        "b",
        True,
        3,
    ),
    "a reader behind a writer": (f"{BEHIND_A_WRITER}, left waits stock", "prices", True, 3),
    "a chain": (
        """root holds stock, middle holds basket, middle waits stock, last holds cart,
        last waits basket""",
        "stock",
        False,
        2,
    ),
    "a cycle that another holder can end": (
        """third holds pool:a, fourth holds pool:b, left holds pool:a, right holds pool:b,
        left waits pool:b, right waits pool:a""",
        "a",
        False,
        2,
    ),
    "a reader behind a writer that waits for no lock of the reader": (
        BEHIND_A_WRITER,
        "prices",
        False,
        1,
    ),
}


@pytest.mark.django_db
@pytest.mark.parametrize("case", CASES)
def test_a_deadlock_is_told_from_a_wait_that_ends(viewer, story, case):
    steps, name, expected, count = CASES[case]
    story(steps)

    assert is_deadlock(viewer, name) is expected
    assert len(rows_of(lock_page(viewer, name), "waits")) == count
    assert len(facts("show", name)["chain"]) == count
    assert ("Deadlock" in words_of(viewer.get(DASHBOARD))) is expected


@pytest.mark.django_db
def test_threads_of_the_same_name_are_not_confused(viewer, execute):
    holder, waiter = execute("consumer"), execute("consumer")
    holder.holds("a")
    waiter.waits("a")
    assert not is_deadlock(viewer, "a")


@pytest.mark.django_db
def test_locks_that_the_user_may_not_see_are_in_no_chain(viewer, story, monkeypatch):
    def may_view(self, request, obj=None):
        return obj is None or obj.name == "a"

    story(CROSS)
    monkeypatch.setattr(ActiveLockAdmin, "has_view_permission", may_view, raising=False)

    assert rows_of(lock_page(viewer, "a"), "waits") == []
