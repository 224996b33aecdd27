"""The process is killed between two commands."""

from testproject.gallery.exhibit import Exhibit, Outcome, independent_trials
from testproject.gallery.lock_pairs import OurLock, TaughtLock
from testproject.gallery.trial import ActorFactory, Trial, require, wait_for_expiry

LEASE = 1


class SetnxThenExpire(TaughtLock):
    def acquire(self) -> bool:
        if not self.client.setnx(self.name, self.token):
            return False
        self.client.expire(self.name, int(self.lease))
        return True


def run_trial(trial: Trial, lock: ActorFactory) -> Outcome:
    victim, another = trial.actor(lock, lease=LEASE), trial.actor(lock)
    victim.begin("acquire", halt_before={"EXPIRE"})
    require(victim.halts() or victim.end(), "the lock was free")
    victim.kill()
    wait_for_expiry(LEASE)
    return Outcome(failed=not another.do("acquire"))


EXHIBIT = Exhibit(
    name="setnx-expire",
    title="SETNX, then EXPIRE",
    algorithm="One command takes the lock, a second one gives it a lease.",
    failure="the process was killed between the two commands: nobody can acquire the lock again",
    taught=SetnxThenExpire,
    ours=OurLock,
    run_trials=independent_trials(run_trial, at_once=20),
)
