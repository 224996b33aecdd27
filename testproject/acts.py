"""The three acts of the demo. Each prints what it measured and returns what was wrong with it."""

import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any

from celery import Task

from django_redislock import Holder, LockInfo, locks

from .outcome import Sent
from .shop import oversell, tasks
from .stage import HERE, PATIENCE, Failed, Stage

PROCESSES = 4
ITEMS = 500
SENDS = 20
INDEX = "products"


def say(text: str = "") -> None:
    print(text, flush=True)


def heading(text: str) -> None:
    say(f"\n{text}\n{'-' * len(text)}")


# Act one: the oversell.


@dataclass(frozen=True)
class Sale:
    sold: int
    left: int
    seconds: float


def oversell_act(stage: Stage) -> list[str]:
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


# Act two: the same report, many times.


def report_act(stage: Stage) -> list[str]:
    heading(f"2. The same report sent {SENDS} times to two workers")
    plain, _ = send_all(stage, tasks.report)
    once, holders = send_all(stage, tasks.report_once)
    say_runs("an ordinary task", plain)
    say_runs("with @single_instance", once)
    for task_id, place in holders.items():
        say(f"the lock was held by task {task_id}, {place}")
    return [*wrong_runs(once), *wrong_holders(once, holders)]


Runs = dict[str, dict[str, Any] | None]
"""What each task gave back, by its id: None where it was skipped."""


def send_all(stage: Stage, task: "Task[..., Any]") -> tuple[Runs, dict[str, str]]:
    sent = [Sent(task, report_id=7) for _ in range(SENDS)]
    holders: dict[str, str] = {}

    def all_done() -> bool:
        note_holders(holders)
        return all(each.has_ended() for each in sent)

    stage.wait_for("the reports", all_done)
    return {each.id: each.answer() for each in sent}, holders


def note_holders(holders: dict[str, str]) -> None:
    """Who holds a lock right now, as anybody may ask the manager."""
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
    """The largest number that ran at one moment."""
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
    """Whoever was seen to hold the lock must be one that ran, and where it ran."""
    ran = {task_id: run["place"] for task_id, run in runs.items() if run}
    right = holders and holders.items() <= ran.items()
    return [] if right else [f"{ran} ran, but the lock was held by {holders}"]


# Act three: the terminal.


def command_act(stage: Stage) -> list[str]:
    heading("3. A long task holds a lock, another waits for it")
    name = f"rebuild:{INDEX}"
    first = Sent(tasks.rebuild, INDEX, PATIENCE)
    stage.wait_for("the lock of a task", lambda: is_held_by(first, name))
    second = Sent(tasks.rebuild, INDEX, PATIENCE)
    stage.wait_for("a waiter", lambda: (lock := locks.get(name)) and lock.waiters)
    listed = [manage("locks", "list")]
    manage("locks", "release", name, "--yes")
    stage.wait_for("the waiter's turn", lambda: is_held_by(second, name))
    listed.append(manage("locks", "list"))
    manage("locks", "release", name, "--yes")
    listed.append(manage("locks", "list"))
    stage.wait_for("the end of the tasks", lambda: first.has_ended() and second.has_ended())
    endings = [str(first.answer()), str(second.answer())]
    say(f"the two tasks ended with their lock {' and '.join(endings)}")
    return wrong_lists(name, listed) + wrong_endings(endings)


def is_held_by(sent: Sent, name: str) -> LockInfo | None:
    lock = locks.get(name)
    held = lock and lock.holder and lock.holder.task_id == sent.id
    return lock if held else None


def manage(*arguments: str) -> str:
    """Run ``manage.py``, show the call and its answer, and return the answer."""
    say(f"$ manage.py {' '.join(arguments)}")
    done = subprocess.run(  # noqa: S603  our own command
        [sys.executable, str(HERE / "manage.py"), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE,
        start_new_session=True,
    )
    say(done.stdout.rstrip() + "\n")
    if done.returncode:
        raise Failed(f"manage.py {' '.join(arguments)} ended with {done.returncode}")
    return done.stdout


def wrong_lists(name: str, listed: list[str]) -> list[str]:
    shown = [name in text for text in listed]
    return [] if shown == [True, True, False] else [f"{name} was listed {shown}"]


def wrong_endings(endings: list[str]) -> list[str]:
    return [] if set(endings) == {"lost"} else [f"the tasks ended with {endings}"]
