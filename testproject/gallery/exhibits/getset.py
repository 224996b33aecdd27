"""The clocks of clients decide when a lock has expired."""

import time

from testproject.gallery.exhibit import Exhibit, Outcome, each_apart
from testproject.gallery.parts import Ours, Taught
from testproject.gallery.scene import LONG, Part, Scene, hold, let_pass

LEASE = 0.2
AHEAD = 2 * LONG
"""Seconds by which one client's clock is wrong."""

TAKES = {"GETSET", "EVALSHA"}


class Getset(Taught):
    def acquire(self) -> bool:
        if self.client.setnx(self.name, time.time() + self.lease):
            return True
        expires = float(self.client.get(self.name) or 0)
        if expires > time.time():
            return False
        # It has expired. GETSET returns the old time to the first client only.
        before = float(self.client.getset(self.name, time.time() + self.lease) or 0)
        return before <= time.time()


def happens(scene: Scene, lock: Part) -> Outcome:
    dead = scene.actor(lock, lease=LEASE)
    right, wrong = scene.actor(lock), scene.actor(lock, ahead=AHEAD)
    hold(dead.do("acquire"), "the lock was free")
    dead.kill()
    let_pass(LEASE)
    for each in (right, wrong):
        each.begin("acquire", halt_before=TAKES)
        hold(each.halts(), "both found that the lock had expired")
    for each in (right, wrong):
        each.go_on()
        each.halts()
    hold(right.end(), "the first of them got it")
    return Outcome(failed=wrong.end())


EXHIBIT = Exhibit(
    name="getset",
    title="SETNX with GETSET, and the clients' clocks",
    algorithm="The value is the time at which the lock expires, by the holder's clock.",
    failure="the clock of one client was ahead, and both took over an expired lock: two held it",
    taught=Getset,
    ours=Ours,
    plays=each_apart(happens, at_once=5),
)
