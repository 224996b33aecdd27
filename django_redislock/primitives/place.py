"""A holding that no process keeps."""

from dataclasses import replace

from .. import values
from ..engine import flows
from ..engine.drivers import run
from ..holder import Task, info_text
from .base import BaseLock


class Place:
    """A holding of `lock` that no process keeps, for something that is on its way.

    One process takes it; any that knows the token can leave it, or take it over with a lock
    whose `predecessor` is that token. Nothing renews it. `task` is who is told as its holder,
    and the metadata say that it is ``queued``.
    """

    def __init__(self, lock: BaseLock, token: str, task: Task) -> None:
        self.lock = lock
        self.token = values.token("token", token)
        self.task = task

    def take(self, seconds: float, *, predecessor: str = "") -> bool:
        """Hold it for so long, and say whether that succeeded. To take what is held by this
        token already makes it last as long at least; a `predecessor` has to give way."""
        want = replace(self._want(seconds), predecessor=predecessor)
        return run(self.lock._server().client, flows.hold_for(want))

    def inherit(self, seconds: float) -> None:
        """Take over what `lock` holds, which thereby lets go of it. Raises as its `release`."""
        self.lock.pass_on(self._want(seconds))

    def leave(self) -> bool:
        """Let go, and say whether it was held by this token."""
        lock = self.lock
        keys = lock._server().keys.of(lock.name)
        flow = flows.release(keys, self.token, at_least_for=lock.at_least_for)
        return run(lock._server().client, flow)

    def _want(self, seconds: float) -> flows.Want:
        keys = self.lock._server().keys.of(self.lock.name)
        want = self.lock._want(keys, self.token)
        info = info_text({**self.lock.metadata, "queued": True}, self.task)
        return replace(want, lease=max(seconds, self.lock.at_least_for), info=info)
