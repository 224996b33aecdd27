"""Signals, all sent with `send_robust`: an exception in a receiver does not affect the lock.

Each acquisition of a lock object sends these signals, in this order:

1. `lock_waiting`, if the acquisition has to wait.
2. One of `lock_acquired`, `lock_refused` and `lock_failed`.
3. `lock_lost`, if the lock is lost while it is held.
4. `lock_released`, unless the holder ends without a release.

``lock_many()`` and ``quorum()`` send one signal for all names or servers. A repeated acquisition
of a reentrant lock sends no signal. If no receiver was connected to any of these six signals when
an acquisition began, only `lock_lost` is sent for it, with `acquisition` None. All six have these
arguments:

`sender`, `lock`
    The class of the lock, and the lock object.
`using`
    The cache alias. A quorum lock has all its aliases, joined by ``", "``. A lock on a client
    of your own has ``""``.
`name`, `kind`
    The lock's name (for ``lock_many()`` all names, joined by ``", "``), and the lock type as in
    `LockInfo`.
`acquisition`
    An object that is the same in all signals of one acquisition. Use it as a key, best in a
    `WeakKeyDictionary`, because it exists only as long as the hold.

Receivers run in the thread or event loop that acquires or releases the lock, which waits for them.
They cannot be coroutine functions, because no event loop can call these here.
"""

from django.dispatch import Signal

lock_waiting = Signal()
"""The lock is not free, and the caller begins to wait.

It has no further arguments. For a quorum lock it is sent when the wait at one server begins.
"""

lock_acquired = Signal()
"""The lock was acquired.

Arguments: `fence_token` (None for ``lock_many()``, whose lock has `fence_tokens`), `waited`
(seconds from the call to the acquisition).
"""

lock_refused = Signal()
"""The lock was not acquired in time, and `acquire()` returns False.

Argument: `waited` (seconds from the call to the refusal).
"""

lock_failed = Signal()
"""The acquisition ended with an exception: Redis is unreachable, the name is in use for another
lock type, or the caller was interrupted or cancelled.

Arguments: `waited` (seconds from the call to the exception), `error` (the exception).
"""

lock_released = Signal()
"""The holder released the lock, or its hold ended after `lock_lost`.

It is also sent if Redis is unreachable, and the lock is released later or expires. With
`release_on_commit` it is sent after the commit. For a reentrant lock it is sent when the first
acquisition is released. Arguments: `fence_token` (None for ``lock_many()``), `held` (seconds from
`lock_acquired` to the release, by the clock of the holder).
"""

lock_lost = Signal()
"""The lock was lost while it was held.

It is sent by the renewal thread, by the event loop that holds the lock, or by the holder that
finds out. It is sent for each lock object with a hold. `lock` is None if the lock object no longer
exists. For ``lock_many()`` it is sent once, and `name` is the name of the first mutex that was
lost. Further arguments: `token`, `fence_token`.
"""

lock_force_released = Signal()
"""A lock was force-released.

Arguments: `sender` (the class of the manager), `using` (the cache alias), `name`, `tokens` (a
tuple of the lock tokens of the holders that lost the lock), `by` (who released the lock, such as a
user, or None), `reason` (a text, or None).
"""

task_skipped = Signal()
"""A task was skipped, because another instance is running or queued.

Arguments: `sender` (the task, or the plain function), `name` (the lock's name), `task_id` (the id
of the skipped task, None outside a task, or if `django.tasks` did not enqueue it),
`holder_task_id`, `args`, `kwargs`.
"""

task_replaced = Signal()
"""A queued task was revoked, because a newer task replaced it (``on_conflict="replace"``).

It is sent in the process that sent the newer task. Arguments: `sender` (the task), `name` (the
name of the queue lock), `task_id` (the id of the revoked task), `by_task_id`.
"""


LOCK_SIGNALS = (
    lock_acquired,
    lock_released,
    lock_refused,
    lock_failed,
    lock_waiting,
    lock_lost,
)
"""The signals about an acquisition and the hold that it leads to."""
