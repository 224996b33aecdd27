"""The process is killed between two commands."""

from testproject.gallery.exhibit import Exhibit, Outcome, each_apart
from testproject.gallery.parts import Ours, Taught
from testproject.gallery.scene import Part, Scene, hold, let_pass

LEASE = 1


class SetnxThenExpire(Taught):
    def acquire(self) -> bool:
        if not self.client.setnx(self.name, self.token):
            return False
        self.client.expire(self.name, int(self.lease))
        return True


def happens(scene: Scene, lock: Part) -> Outcome:
    victim, another = scene.actor(lock, lease=LEASE), scene.actor(lock)
    victim.begin("acquire", halt_before={"EXPIRE"})
    hold(victim.halts() or victim.end(), "the lock was free")
    victim.kill()
    let_pass(LEASE)
    return Outcome(failed=not another.do("acquire"))


EXHIBIT = Exhibit(
    name="setnx-expire",
    title="SETNX, then EXPIRE",
    algorithm="One command takes the lock, a second one gives it a lease.",
    failure="the process was killed between the two commands: nobody can acquire the lock again",
    taught=SetnxThenExpire,
    ours=Ours,
    plays=each_apart(happens, at_once=20),
)
