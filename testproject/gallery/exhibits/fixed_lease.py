"""The work takes longer than the lease."""

from testproject.gallery.exhibit import Exhibit, Outcome, independent_trials
from testproject.gallery.lock_pairs import OurLock, TaughtLock
from testproject.gallery.trial import ActorFactory, Trial, require, wait_for_expiry

LEASE = 1.0

RELEASE = "if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end"


class FixedLease(TaughtLock):
    def acquire(self) -> bool:
        return bool(self.client.set(self.name, self.token, nx=True, px=self.lease_ms))

    def release(self) -> None:
        self.client.eval(RELEASE, 1, self.name, self.token)


def run_trial(trial: Trial, lock: ActorFactory) -> Outcome:
    busy, second = trial.actor(lock, lease=LEASE), trial.actor(lock)
    require(busy.do("acquire"), "the lock was free")
    wait_for_expiry(LEASE)
    return Outcome(failed=second.do("acquire"))


EXHIBIT = Exhibit(
    name="fixed-lease",
    title="A lease that expires before the work ends",
    algorithm="SET NX PX, and a script that compares and deletes; nobody renews the lease.",
    failure="the work took longer than the lease: two held the lock",
    taught=FixedLease,
    ours=OurLock,
    run_trials=independent_trials(run_trial, at_once=20),
)
