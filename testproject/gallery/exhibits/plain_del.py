"""A holder that is late deletes the lock of the next holder."""

from testproject.gallery.exhibit import Exhibit, Outcome, independent_trials
from testproject.gallery.lock_pairs import OurLock, TaughtLock
from testproject.gallery.trial import ActorFactory, Trial, require, wait_for_expiry

LEASE = 0.2


class PlainDel(TaughtLock):
    def acquire(self) -> bool:
        return bool(self.client.set(self.name, "taken", nx=True, px=self.lease_ms))

    def release(self) -> None:
        self.client.delete(self.name)


def run_trial(trial: Trial, lock: ActorFactory) -> Outcome:
    late, second, third = trial.actor(lock, lease=LEASE), trial.actor(lock), trial.actor(lock)
    require(late.do("acquire"), "the lock was free")
    late.freeze()
    wait_for_expiry(LEASE)
    require(second.do("acquire"), "the lease had expired")
    late.thaw()
    late.do("release")
    return Outcome(failed=third.do("acquire"))


EXHIBIT = Exhibit(
    name="plain-del",
    title="DEL without checking the holder",
    algorithm="SET NX PX acquires the lock, DEL releases it.",
    failure="a holder that was paused past its lease deleted the next holder's lock: two held it",
    taught=PlainDel,
    ours=OurLock,
    run_trials=independent_trials(run_trial, at_once=5),
)
