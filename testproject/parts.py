"""The three parts of the demo. Each part prints its measurements and returns the problems."""

import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any

from celery import Task

from django_redislock import Holder, LockInfo, locks

from .sent_task import SentTask
from .shop import oversell, tasks
from .stage import HERE, TIMEOUT_SECONDS, DemoError, Stage

PROCESSES = 4
ITEMS = 500
SENDS = 20
INDEX = "products"


def say(text: str = "") -> None:
    print(text, flush=True)


def heading(text: str) -> None:
    say(f"\n{text}\n{'-' * len(text)}")


# Part 1: overselling.


@dataclass(frozen=True)
class Sale:
    sold: int
    left: int
    seconds: float


def show_oversell(stage: Stage) -> list[str]:
    heading(f"1. {ITEMS} teapots, {PROCESSES * oversell.BUYERS} buyers in {PROCESSES} processes")
    unlocked, locked = sale(stage), sale(stage, "--lock")
    say_sale("without a lock", unlocked)
    say_sale("with locks.lock(...)", locked)
    wrong = []
    if unlocked.sold <= ITEMS:
        wrong.append(f"without a lock {unlocked.sold} were sold: the race did not show")
    if (locked.sold, locked.left) != (ITEMS, 0):
        wrong.append(f"with the lock {locked.sold} were sold and {locked.left} left, of {ITEMS}")
    return wrong


def say_sale(label: str, sale: Sale) -> None:
    surplus = f"{sale.sold - ITEMS:,} too many" if sale.sold > ITEMS else "none too many"
    say(f"{label:<26}{sale.sold:>6,} sold   {surplus:<16}{sale.seconds:>5.1f} s")


def sale(stage: Stage, *options: str) -> Sale:
    oversell.fill(ITEMS)
    with stage.crew("testproject.shop.oversell", *options, size=PROCESSES) as crew:
        began = time.perf_counter()
        crew.go()
        crew.join()
        return Sale(oversell.sold(), oversell.left(), time.perf_counter() - began)


# Part 2: the same report, sent many times.


def show_reports(stage: Stage) -> list[str]:
    heading(f"2. The same report sent {SENDS} times to two workers")
    plain, _ = send_all(stage, tasks.report)
    once, holders = send_all(stage, tasks.report_once)
    say_runs("an ordinary task", plain)
    say_runs("with @single_instance", once)
    for task_id, place in holders.items():
        say(f"the lock was held by task {task_id}, {place}")
    return [*wrong_runs(once), *wrong_holders(once, holders)]


Runs = dict[str, dict[str, Any] | None]
"""Return values by task id; None if the task was skipped."""


def send_all(stage: Stage, task: "Task[..., Any]") -> tuple[Runs, dict[str, str]]:
    sent = [SentTask(task, report_id=7) for _ in range(SENDS)]
    holders: dict[str, str] = {}

    def all_done() -> bool:
        note_holders(holders)
        return all(each.has_ended() for each in sent)

    stage.wait_for("the reports", all_done)
    return {each.id: each.result() for each in sent}, holders


def note_holders(holders: dict[str, str]) -> None:
    """Add the current holders of all locks."""
    for lock in locks.active():
        if lock.holder is not None:
            holders[str(lock.holder.task_id)] = place_of(lock.holder)


def place_of(holder: Holder) -> str:
    return f"{holder.host}:{holder.pid}"


def say_runs(label: str, runs: Runs) -> None:
    ran = [run for run in runs.values() if run]
    skipped = len(runs) - len(ran)
    say(
        f"{label:<26}{len(ran):>6} ran    {skipped:>2} skipped      {at_once(ran)} at once at most"
    )


def at_once(ran: list[dict[str, Any]]) -> int:
    """Return the largest number of runs at one moment."""
    changes = [(run["started"], 1) for run in ran] + [(run["ended"], -1) for run in ran]
    running = most = 0
    for _, change in sorted(changes):
        running += change
        most = max(most, running)
    return most


def wrong_runs(runs: Runs) -> list[str]:
    ran = [run for run in runs.values() if run]
    wrong = []
    if not ran:
        wrong.append(f"of {SENDS} reports none ran")
    if len(ran) == SENDS:
        wrong.append(f"of {SENDS} reports none was skipped")
    if at_once(ran) > 1:
        wrong.append(f"{at_once(ran)} reports ran at once under @single_instance")
    return wrong


def wrong_holders(runs: Runs, holders: dict[str, str]) -> list[str]:
    """Check that each holder seen is a task that ran, in the same process."""
    ran = {task_id: run["place"] for task_id, run in runs.items() if run}
    match = holders and holders.items() <= ran.items()
    return [] if match else [f"{ran} ran, but the lock was held by {holders}"]


# Part 3: the terminal.


def show_command(stage: Stage) -> list[str]:
    heading("3. A long task holds a lock and a second task waits for it")
    name = f"rebuild:{INDEX}"
    first = SentTask(tasks.rebuild, INDEX, TIMEOUT_SECONDS)
    stage.wait_for("the lock of a task", lambda: is_held_by(first, name))
    second = SentTask(tasks.rebuild, INDEX, TIMEOUT_SECONDS)
    stage.wait_for("a waiter", lambda: (lock := locks.get(name)) and lock.waiters)
    listed = [manage("locks", "list")]
    manage("locks", "release", name, "--yes")
    stage.wait_for("the handover to the waiter", lambda: is_held_by(second, name))
    listed.append(manage("locks", "list"))
    manage("locks", "release", name, "--yes")
    listed.append(manage("locks", "list"))
    stage.wait_for("the end of the tasks", lambda: first.has_ended() and second.has_ended())
    endings = [str(first.result()), str(second.result())]
    say(f"the two tasks ended with their lock {' and '.join(endings)}")
    return wrong_lists(name, listed) + wrong_endings(endings)


def is_held_by(sent: SentTask, name: str) -> LockInfo | None:
    lock = locks.get(name)
    held = lock and lock.holder and lock.holder.task_id == sent.id
    return lock if held else None


def manage(*arguments: str) -> str:
    """Run ``manage.py``, print the command and its output, and return the output."""
    say(f"$ manage.py {' '.join(arguments)}")
    done = subprocess.run(  # noqa: S603  our own command
        [sys.executable, str(HERE / "manage.py"), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_SECONDS,
        start_new_session=True,
    )
    say(done.stdout.rstrip() + "\n")
    if done.returncode:
        raise DemoError(f"manage.py {' '.join(arguments)} ended with {done.returncode}")
    return done.stdout


def wrong_lists(name: str, listed: list[str]) -> list[str]:
    shown = [name in text for text in listed]
    return [] if shown == [True, True, False] else [f"{name} was listed {shown}"]


def wrong_endings(endings: list[str]) -> list[str]:
    return [] if set(endings) == {"lost"} else [f"the tasks ended with {endings}"]
