"""Another client acquires the lock between GET and DEL."""

from testproject.gallery.exhibit import Exhibit, Outcome, independent_trials
from testproject.gallery.lock_pairs import OurLock, TaughtLock
from testproject.gallery.trial import ActorFactory, Trial, require, wait_for_expiry

LEASE = 0.3

DELETES = {"DEL", "EVALSHA"}
"""The commands that delete the lock: DEL here, a script that also compares in this package."""


class GetThenDel(TaughtLock):
    def acquire(self) -> bool:
        return bool(self.client.set(self.name, self.token, nx=True, px=self.lease_ms))

    def release(self) -> None:
        if self.client.get(self.name) == self.token:
            self.client.delete(self.name)


def run_trial(trial: Trial, lock: ActorFactory) -> Outcome:
    late, second, third = trial.actor(lock, lease=LEASE), trial.actor(lock), trial.actor(lock)
    require(late.do("acquire"), "the lock was free")
    late.begin("release", halt_before=DELETES)
    require(late.halts(), "the lock was still its own when it read the token")
    late.freeze()
    wait_for_expiry(LEASE)
    require(second.do("acquire"), "the lease had expired")
    late.thaw()
    late.resume()
    late.end()
    return Outcome(failed=third.do("acquire"))


EXHIBIT = Exhibit(
    name="get-then-del",
    title="GET, compare, DEL",
    algorithm="The client reads the lock's token, and deletes the lock if the token is its own.",
    failure="a holder that was paused in between deleted the next holder's lock: two held it",
    taught=GetThenDel,
    ours=OurLock,
    run_trials=independent_trials(run_trial, at_once=5),
)
