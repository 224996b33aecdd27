"""The clocks of clients decide when a lock has expired."""

import time

from testproject.gallery.exhibit import Exhibit, Outcome, independent_trials
from testproject.gallery.lock_pairs import OurLock, TaughtLock
from testproject.gallery.trial import (
    LONG_LEASE_SECONDS,
    ActorFactory,
    Trial,
    require,
    wait_for_expiry,
)

LEASE = 0.2
AHEAD = 2 * LONG_LEASE_SECONDS
"""Seconds by which one client's clock is wrong."""

TAKES = {"GETSET", "EVALSHA"}


class Getset(TaughtLock):
    def acquire(self) -> bool:
        if self.client.setnx(self.name, time.time() + self.lease):
            return True
        expires = float(self.client.get(self.name) or 0)
        if expires > time.time():
            return False
        # It has expired. GETSET returns the old time to the first client only.
        before = float(self.client.getset(self.name, time.time() + self.lease) or 0)
        return before <= time.time()


def run_trial(trial: Trial, lock: ActorFactory) -> Outcome:
    dead = trial.actor(lock, lease=LEASE)
    right, wrong = trial.actor(lock), trial.actor(lock, ahead=AHEAD)
    require(dead.do("acquire"), "the lock was free")
    dead.kill()
    wait_for_expiry(LEASE)
    for each in (right, wrong):
        each.begin("acquire", halt_before=TAKES)
        require(each.halts(), "both found that the lock had expired")
    for each in (right, wrong):
        each.resume()
        each.halts()
    require(right.end(), "the first client acquired the lock")
    return Outcome(failed=wrong.end())


EXHIBIT = Exhibit(
    name="getset",
    title="SETNX with GETSET, and the clients' clocks",
    algorithm="The value is the time at which the lock expires, by the holder's clock.",
    failure="the clock of one client was ahead, and both took over an expired lock: two held it",
    taught=Getset,
    ours=OurLock,
    run_trials=independent_trials(run_trial, at_once=5),
)
