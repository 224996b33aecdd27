"""Tests of a user's own tasks with the testing kit."""

from typing import assert_type

from django_redislock import BaseLock
from django_redislock.testing import (
    EmbeddedServer,
    Other,
    alose,
    assert_nothing_held,
    assert_retried,
    assert_skipped,
    conflict,
    embedded_redis,
    held_elsewhere,
    lose,
)

from .tasks import plain, sync


@embedded_redis()
def on_a_server() -> None:
    with embedded_redis(also=["sessions"]) as server:
        assert_type(server, EmbeddedServer)


def conflicts() -> None:
    with held_elsewhere("stock", holder_task_id="1", metadata={"site": 7}) as lock:
        assert_type(lock, BaseLock)
    with conflict(sync, 7) as other, assert_skipped(sync) as skipped:
        assert_type(other, Other)
    print([fact["name"] for fact in skipped])
    with conflict(plain, 7, twice=True), assert_retried(within=0.5):
        plain(7, twice=True)
    assert_nothing_held(using="default")


async def losses() -> None:
    lose("stock")
    await alose("stock", using="default")
