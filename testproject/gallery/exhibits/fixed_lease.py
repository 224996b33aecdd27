"""The work takes longer than the lease."""

from testproject.gallery.exhibit import Exhibit, Outcome, each_apart
from testproject.gallery.parts import Ours, Taught
from testproject.gallery.scene import Part, Scene, hold, let_pass

LEASE = 1.0

RELEASE = "if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end"


class FixedLease(Taught):
    def acquire(self) -> bool:
        return bool(self.client.set(self.name, self.token, nx=True, px=self.lease_ms))

    def release(self) -> None:
        self.client.eval(RELEASE, 1, self.name, self.token)


def happens(scene: Scene, lock: Part) -> Outcome:
    busy, second = scene.actor(lock, lease=LEASE), scene.actor(lock)
    hold(busy.do("acquire"), "the lock was free")
    let_pass(LEASE)
    return Outcome(failed=second.do("acquire"))


EXHIBIT = Exhibit(
    name="fixed-lease",
    title="A lease that expires before the work ends",
    algorithm="SET NX PX, and a script that compares and deletes; nobody renews the lease.",
    failure="the work took longer than the lease: two held the lock",
    taught=FixedLease,
    ours=Ours,
    plays=each_apart(happens, at_once=20),
)
