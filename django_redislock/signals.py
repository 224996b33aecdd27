"""Signals, all sent with `send_robust`: a listener that fails can't strand a lock.

Of an acquisition by a lock object is told: `lock_waiting` if it has to wait, then one of
`lock_acquired`, `lock_refused` and `lock_failed`; after `lock_acquired` one `lock_released`,
unless its holder ends without a release, and before that `lock_lost` if it is lost. `lock_many`
acquires all its names at once, `quorum` on all its servers, and who enters again acquires
nothing: of that nothing is told. Of an acquisition that began while nobody listened to any of
these six, only `lock_lost` is sent, with `acquisition` None. All of them have the arguments

`sender`, `lock`
    The lock's class, and the lock object.
`using`
    The alias of ``CACHES``; those of a quorum, joined by ``", "``; ``""`` for a lock on a client
    of one's own.
`name`, `kind`
    The lock's name (those of `lock_many`, joined by ``", "``), and its kind as `LockInfo` has it.
`acquisition`
    The same object from the first of them to the last: a key for what a listener keeps, best in a
    `WeakKeyDictionary`, for it goes with the holding, however that ends.

Listeners are called in the thread or event loop that acquires or releases, which goes on when they
have returned. They must not be coroutine functions, which can't be called on an event loop.
"""

from django.dispatch import Signal

lock_waiting = Signal()
"""Its turn did not come at once, and it waits now.

No further arguments. Of a quorum it is told as soon as it waits at one server for its turn.
"""

lock_acquired = Signal()
"""It is held now.

Arguments: `fence_token` (None for `lock_many`, whose lock has `fence_tokens`), `waited` (seconds
from the call to this).
"""

lock_refused = Signal()
"""Its turn did not come in time: `acquire` answers False.

Argument: `waited` (seconds from the call to this; next to none where it was not to wait).
"""

lock_failed = Signal()
"""Its acquisition ended by an error: Redis is away, the lock is of another kind, or who wanted it
was interrupted or cancelled.

Arguments: `waited` (seconds from the call to this), `error` (the exception that is raised).
"""

lock_released = Signal()
"""Its holder let go of it, or of what was left of it after `lock_lost`.

Told also where Redis could not be, and the lock is given back later or runs out. With
`release_on_commit` it is told after the commit; where it was entered again, when the first that
entered leaves. Arguments: `fence_token` (None for `lock_many`), `held` (seconds from
`lock_acquired` to this, on the holder's clock).
"""

lock_lost = Signal()
"""It was held, and went away before it was released.

Sent from the renewal thread (or the event loop that holds the lock), or by the holder that finds
it out; of each lock object that has entered it. `lock` is None where nobody has it any more,
`acquisition` where its acquisition was not told of, and `name` is that of the one lock of
`lock_many` that is lost. Further arguments: `token`, `fence_token`.
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
