"""The lock changes hands between the look at its owner and the deletion."""

from testproject.gallery.exhibit import Exhibit, Outcome, each_apart
from testproject.gallery.parts import Ours, Taught
from testproject.gallery.scene import Part, Scene, hold, let_pass

LEASE = 0.3

DELETES = {"DEL", "EVALSHA"}
"""What takes the lock away: of theirs one command, of ours one script, which also compares."""


class GetThenDel(Taught):
    def acquire(self) -> bool:
        return bool(self.client.set(self.name, self.token, nx=True, px=self.lease_ms))

    def release(self) -> None:
        if self.client.get(self.name) == self.token:
            self.client.delete(self.name)


def happens(scene: Scene, lock: Part) -> Outcome:
    late, second, third = scene.actor(lock, lease=LEASE), scene.actor(lock), scene.actor(lock)
    hold(late.do("acquire"), "the lock was free")
    late.begin("release", halt_before=DELETES)
    hold(late.halts(), "it was still its own when it looked")
    late.freeze()
    let_pass(LEASE)
    hold(second.do("acquire"), "the lease had ended")
    late.thaw()
    late.go_on()
    late.end()
    return Outcome(failed=third.do("acquire"))


EXHIBIT = Exhibit(
    name="get-then-del",
    title="GET, compare, DEL",
    algorithm="The client reads the lock's token, and deletes the lock if the token is its own.",
    failure="a holder that was paused in between deleted the next holder's lock: two held it",
    taught=GetThenDel,
    ours=Ours,
    plays=each_apart(happens, at_once=5),
)
