"""Interleavings that the random moves of test_model seldom make."""

from collections.abc import Iterator

import pytest
import redis

from django_redislock.engine import protocol, store

from .stage import LEASE, Stage, Worker


@pytest.fixture
def stage(redis_client: redis.Redis) -> Iterator[Stage]:
    """A stage with a mutex."""
    yield from stage_of(Stage(redis_client))


@pytest.fixture
def semaphore(redis_client: redis.Redis) -> Iterator[Stage]:
    """A stage with a semaphore of 3."""
    yield from stage_of(Stage(redis_client, "semaphore", 3))


def stage_of(stage: Stage) -> Iterator[Stage]:
    with stage:
        yield stage
        for worker in stage.workers:
            stage.run(protocol.release(worker.request.keys, worker.request.token))


def test_a_grant_that_was_read_late_is_confirmed_before_it_counts(stage: Stage) -> None:
    holder, waiter = stage.worker(), stage.worker()
    holder.acquire().step()
    waiter.acquire().step()
    holder.release().step()
    stage.pass_time(store.GRANT_TTL_SECONDS - 0.5)
    waiter.step()
    assert not waiter.believes
    waiter.step()
    assert waiter.believes


def test_a_grant_that_ran_out_unread_does_not_count(stage: Stage) -> None:
    holder, waiter, other = (stage.worker() for _ in range(3))
    holder.acquire().step()
    waiter.acquire().step()
    holder.release().step()
    waiter.arrive()
    stage.pass_time(store.GRANT_TTL_SECONDS + 0.1)
    assert other.acquire(wait=0).finish()
    waiter.step()  # it reads its connection only now
    waiter.step()
    assert not waiter.believes
    assert other.believes


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


def test_a_lease_that_expired_before_its_reply_is_requested_again(stage: Stage) -> None:
    worker = stage.worker().acquire()
    worker.arrive()
    stage.pass_time(LEASE + 0.1)
    worker.step()
    assert worker.op
    worker.step()
    assert worker.believes


def test_a_lease_that_expired_before_its_reply_fails_if_no_time_is_left(stage: Stage) -> None:
    worker = stage.worker().acquire(wait=0)
    worker.arrive()
    stage.pass_time(LEASE + 0.1)
    worker.finish()
    assert not worker.believes


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


def test_a_kind_ends_with_its_last_lease(semaphore: Stage) -> None:
    short, long = semaphore.worker(), semaphore.worker()
    short.acquire().step()
    semaphore.pass_time(10)
    long.acquire().step()
    long.release().step()
    short.die()
    semaphore.pass_time(LEASE - 10 + 1)
    mutex = semaphore.worker(kind="mutex", capacity=1)
    assert mutex.acquire(wait=0).finish()


def test_the_kind_is_the_kind_of_the_first_live_waiter(semaphore: Stage) -> None:
    holder, dead, waiter = (semaphore.worker(weight=3) for _ in range(3))
    holder.acquire().step()
    holder.die()
    semaphore.pass_time(LEASE - 1.5)
    dead.acquire().step()
    dead.die()
    semaphore.pass_time(1)
    waiter.acquire().step()
    semaphore.pass_time(1.2)
    assert not semaphore.worker(kind="mutex", capacity=1).acquire(wait=0).finish()
    assert waiter.finish(), "and it is still a semaphore"
