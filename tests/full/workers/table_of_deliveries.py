"""The table of deliveries in the docs, made from the table in the code.

``python -m tests.full.workers.table_of_deliveries`` prints it.
"""

from django_redislock.tasks.deliveries import (
    MAY_HAVE_BEGUN,
    Action,
    Claim,
    Delivery,
    Holder,
    action_at_start,
)
from django_redislock.tasks.options import MODES
from tests.faults.table import markdown

DELIVERIES = {
    Delivery.CALLED: "Direct call, `apply()`, or a call inside the holder",
    Delivery.DUPLICATE: "Sent as a duplicate, because others need its result",
    Delivery.FIRST: "First delivery",
    Delivery.RETRY: "Retry of the task",
    Delivery.RETURNED: "Redelivered, acknowledged early",
    Delivery.SENT_AGAIN: "Sent again after it may have begun",
    Delivery.REDELIVERED: "Redelivered, with `acks_late`",
}

HOLDERS = {
    Holder.NOBODY: "The lock is free",
    Holder.ITSELF: "Its own earlier execution",
    Holder.ENDED: "The queue lock of a task that has ended",
    Holder.OTHER: "Another holder",
}


def action(delivery: Delivery, mode: str, holder: Holder) -> Action:
    """Return the action when a task starts that was sent in this mode.

    A message has a queue lock if its mode takes one, and if it is no duplicate of another task.
    """
    locking = MODES[mode]
    claim = Claim.QUEUE_LOCK if locking.when_sent else Claim.NONE
    found = action_at_start(delivery, claim, holder, is_behind_running=locking.separate)
    if found in (Action.RUN_LATER, Action.TAKE_OVER) and not locking.while_running:
        return Action.RUN  # no lock is held while the task runs
    return found


def modes_of(delivery: Delivery) -> list[str]:
    """Return the modes in which there is this delivery."""
    if delivery is Delivery.DUPLICATE:
        return [mode for mode, locking in MODES.items() if locking.when_sent]
    return list(MODES)


def table() -> str:
    head = ["Delivery", "Mode", *HOLDERS.values()]
    rows = [head, ["---"] * len(head)]
    for delivery, title in DELIVERIES.items():
        for modes, texts in texts_by_modes(delivery):
            rows.append([title, ", ".join(modes), *texts])
            title = ""
    return markdown(*rows)


def texts_by_modes(delivery: Delivery) -> list[tuple[list[str], list[str]]]:
    """Return the cells of a delivery, each row with the modes that have it."""
    found: list[tuple[list[str], list[str]]] = []
    for mode in modes_of(delivery):
        texts = [text(delivery, mode, holder) for holder in HOLDERS]
        for modes, known in found:
            if known == texts:
                modes.append(mode)
                break
        else:
            found.append(([mode], texts))
    if len(found) == 1:
        which = "all" if found[0][0] == list(MODES) else "all that take a queue lock"
        return [([which], found[0][1])]
    return [([f"`{mode}`" for mode in modes], texts) for modes, texts in found]


def text(delivery: Delivery, mode: str, holder: Holder) -> str:
    words = str(action(delivery, mode, holder))
    if holder is Holder.NOBODY and delivery in MAY_HAVE_BEGUN:
        words += f"; {Action.IGNORE} if it has succeeded"
    return words


if __name__ == "__main__":
    print(table())
