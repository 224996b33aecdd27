"""Who comes too late deletes the lock of the next."""

from testproject.gallery.exhibit import Exhibit, Outcome, each_apart
from testproject.gallery.parts import Ours, Taught
from testproject.gallery.scene import Part, Scene, hold, let_pass

LEASE = 0.2


class PlainDel(Taught):
    def acquire(self) -> bool:
        return bool(self.client.set(self.name, "taken", nx=True, px=self.lease_ms))

    def release(self) -> None:
        self.client.delete(self.name)


def happens(scene: Scene, lock: Part) -> Outcome:
    late, second, third = scene.actor(lock, lease=LEASE), scene.actor(lock), scene.actor(lock)
    hold(late.do("acquire"), "the lock was free")
    late.freeze()
    let_pass(LEASE)
    hold(second.do("acquire"), "the lease had ended")
    late.thaw()
    late.do("release")
    return Outcome(failed=third.do("acquire"))


EXHIBIT = Exhibit(
    name="plain-del",
    title="DEL without checking the holder",
    algorithm="SET NX PX acquires the lock, DEL releases it.",
    failure="a holder that was paused past its lease deleted the next holder's lock: two held it",
    taught=PlainDel,
    ours=Ours,
    plays=each_apart(happens, at_once=5),
)
