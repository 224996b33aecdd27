"""Interleavings that the random moves of test_model seldom make."""

from collections.abc import Iterator

import pytest
import redis

from django_redislock.engine import protocol, store

from .stage import LEASE, Stage, Worker


@pytest.fixture
def stage(redis_client: redis.Redis, request: pytest.FixtureRequest) -> Iterator[Stage]:
    """A stage with a mutex, or with what the test asks for."""
    with Stage(redis_client, *getattr(request, "param", ())) as stage:
        yield stage
        for worker in stage.workers:
            stage.run(protocol.release(worker.request.keys, worker.request.token))


def test_a_waiter_that_dies_after_its_grant_does_not_delay_the_next(stage: Stage) -> None:
    holder, dead, dies, waiter = (stage.worker() for _ in range(4))
    for worker in (holder, dead, dies, waiter):
        worker.acquire().step()
    dead.die()
    holder.release().step()
    stage.pass_time(0.2)
    dies.send_heartbeat()
    dies.die()
    stage.pass_time(store.GRANT_TTL_SECONDS - 0.2 + 0.01)
    waiter.send_heartbeat()
    assert waiter.believes


def test_a_waiter_that_was_granted_at_its_last_moment_has_the_lock(stage: Stage) -> None:
    holder, waiter = stage.worker(), stage.worker()
    holder.acquire().step()
    waiter.acquire(wait=1.0).step()
    waiter.step()
    stage.pass_time(1.1)
    holder.release().step()
    assert waiter.finish()
    assert waiter.believes


@pytest.mark.parametrize("lose", [Worker.lose_reply, Worker.lose_request])
def test_a_waiter_whose_connection_broke_goes_on_waiting(stage: Stage, lose: object) -> None:
    holder, waiter = stage.worker(), stage.worker()
    holder.acquire().step()
    waiter.acquire().step()
    holder.release().step()
    lose(waiter)  # type: ignore[operator]
    waiter.step()
    assert waiter.believes


@pytest.mark.parametrize("wait", [None, 0])
def test_a_lease_that_expired_before_its_reply_is_requested_again_if_there_is_time(
    stage: Stage, wait: float | None
) -> None:
    worker = stage.worker().acquire(wait)
    worker.arrive()
    stage.pass_time(LEASE + 0.1)
    worker.step()
    assert not worker.believes
    worker.finish()
    assert worker.believes is (wait is None)


def test_a_grant_that_is_popped_late_is_requested_again(stage: Stage) -> None:
    holder, waiter = stage.worker().acquire(), stage.worker()
    holder.step()
    waiter.acquire().arrive()  # it is in the queue, and the reply is under way
    holder.release().step()
    stage.pass_time(store.GRANT_TTL_SECONDS - 0.1)
    waiter.step()
    waiter.step()  # it pops the grant at once
    assert not waiter.believes
    assert waiter.finish()
    assert waiter.believes


SEMAPHORE = pytest.mark.parametrize("stage", [("semaphore", 3)], indirect=True, ids=["of 3"])


@SEMAPHORE
def test_a_kind_ends_with_its_last_lease(stage: Stage) -> None:
    short, long = stage.worker(), stage.worker()
    short.acquire().step()
    stage.pass_time(10)
    long.acquire().step()
    long.release().step()
    short.die()
    stage.pass_time(LEASE - 10 + 1)
    assert stage.worker(kind="mutex", capacity=1).acquire(wait=0).finish()


@SEMAPHORE
def test_the_kind_is_the_kind_of_the_first_live_waiter(stage: Stage) -> None:
    holder, dead, waiter = (stage.worker(weight=3) for _ in range(3))
    holder.acquire().step()
    holder.die()
    stage.pass_time(LEASE - 1.5)
    dead.acquire().step()
    dead.die()
    stage.pass_time(1)
    waiter.acquire().step()
    stage.pass_time(1.2)
    assert not stage.worker(kind="mutex", capacity=1).acquire(wait=0).finish()
    assert waiter.finish()
