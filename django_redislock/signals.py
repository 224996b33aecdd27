"""Signals, all sent with `send_robust`: a listener that fails can't strand a lock."""

from django.dispatch import Signal

lock_lost = Signal()
"""A held lock went away before it was released.

Sent from the renewal thread (or the event loop that holds the lock).
Arguments: `sender` (the lock's class), `lock`, `name`, `token`, `fence_token`.
"""

lock_force_released = Signal()
"""Somebody released a lock that is not theirs.

Arguments: `sender` (the manager's class), `using` (the alias), `name`,
`tokens` (a tuple: those of the holders who were released), `user` (the user
whose doing it was, or None).
"""

task_skipped = Signal()
"""A task met a running instance of itself and was completed without running.

Arguments: `sender` (the task, or the plain function), `name` (the lock's),
`task_id` (its own, None outside a task), `holder_task_id`, `args`, `kwargs`.
"""

task_replaced = Signal()
"""A queued task lost its place to a newer one, and was revoked (``on_conflict="replace"``).

Sent by whoever sent the newer one. Arguments: `sender` (the task), `name` (the
place's), `task_id` (of the one that does not run), `by_task_id`.
"""
