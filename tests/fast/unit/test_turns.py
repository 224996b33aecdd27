"""How turns are taken, step by step, in the interleavings that matter."""

import itertools
import os
from collections.abc import Iterator

import pytest
import redis

from django_redislock.engine import flows, ops
from django_redislock.lua import ACQUIRE

from .stage import LEASE, Stage, Worker


@pytest.fixture
def stage() -> Iterator[Stage]:
    with redis.Redis.from_url(os.environ["REDIS_URL"]) as client, Stage(client) as stage:
        yield stage
        for worker in stage.workers:
            stage.run(flows.release(worker.want.keys, worker.want.token))


@pytest.fixture
def semaphore() -> Iterator[Stage]:
    """A stage with a semaphore of 3."""
    with (
        redis.Redis.from_url(os.environ["REDIS_URL"]) as client,
        Stage(client, "semaphore", 3) as stage,
    ):
        yield stage
        for worker in stage.workers:
            stage.run(flows.release(worker.want.keys, worker.want.token))


def test_a_free_lock_is_taken_in_one_call(stage: Stage) -> None:
    worker = stage.worker().acquire()
    worker.step()
    assert worker.op is None
    assert worker.believes


def test_release_hands_over_to_the_first_in_the_queue(stage: Stage) -> None:
    first, second, third = (stage.worker().acquire() for _ in range(3))
    for worker in (first, second, third):
        worker.step()
    first.release().step()
    assert stage.holders() == {"w1"}
    second.step()
    assert second.believes
    assert not third.believes


def test_a_newcomer_does_not_overtake_a_waiter(stage: Stage) -> None:
    holder, waiter, newcomer = (stage.worker() for _ in range(3))
    holder.acquire().step()
    waiter.acquire().step()
    holder.die()
    stage.pass_time(LEASE - 1)
    waiter.step()  # its blocking pop ends with nothing
    waiter.step()  # it asks again, and so shows life
    stage.pass_time(1.1)
    assert newcomer.acquire(wait=0).finish() is None
    assert stage.holders() == {"w1"}


def test_a_grant_is_confirmed_by_asking_again_when_nothing_renews(stage: Stage) -> None:
    holder, waiter = stage.worker(), stage.worker(renewed=False)
    holder.acquire().step()
    waiter.acquire().step()
    holder.release().step()
    waiter.step()
    assert isinstance(waiter.op, ops.Call)
    waiter.step()
    assert waiter.believes


def test_a_grant_that_was_read_late_is_confirmed_before_it_counts(stage: Stage) -> None:
    holder, waiter = stage.worker(), stage.worker()
    holder.acquire().step()
    waiter.acquire().step()
    holder.release().step()
    stage.pass_time(flows.CLAIM - 0.5)
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
    stage.pass_time(flows.CLAIM + 0.1)
    assert other.acquire(wait=0).finish()
    waiter.step()  # its connection is read only now
    waiter.step()
    assert not waiter.believes
    assert other.believes


def test_dead_waiters_are_passed_over_wherever_they_stand(stage: Stage) -> None:
    holder = stage.worker().acquire()
    holder.step()
    waiters = [stage.worker().acquire() for _ in range(6)]
    for waiter in waiters:
        waiter.step()
    for dead in (waiters[0], waiters[1], waiters[3]):
        dead.die()
    stage.pass_time(flows.ALIVE - 0.1)
    for alive in (waiters[2], waiters[4], waiters[5]):
        alive.step()
        alive.step()
    stage.pass_time(0.2)
    turns = [holder, waiters[2], waiters[4], waiters[5]]
    for leaving, entering in itertools.pairwise(turns):
        leaving.release().finish()
        assert stage.holders() == {entering.want.token}
        entering.step()
        entering.renew()


def test_a_grant_to_a_dead_waiter_is_passed_on_when_the_claim_runs_out(stage: Stage) -> None:
    holder, dead, waiter = (stage.worker() for _ in range(3))
    for worker in (holder, dead, waiter):
        worker.acquire().step()
    dead.die()
    holder.release().step()
    assert stage.holders() == {"w1"}
    stage.pass_time(flows.CLAIM + 0.1)
    waiter.step()
    waiter.step()
    assert waiter.believes


def test_who_dies_a_moment_after_a_grant_to_a_dead_waiter_holds_up_nobody(stage: Stage) -> None:
    holder, dead, dies, waiter = (stage.worker() for _ in range(4))
    for worker in (holder, dead, dies, waiter):
        worker.acquire().step()
    dead.die()
    holder.release().step()
    stage.pass_time(0.2)
    dies.show_life()
    dies.die()
    stage.pass_time(flows.CLAIM - 0.2 + 0.01)
    waiter.show_life()
    assert waiter.believes


def test_a_waiter_that_gives_up_is_not_in_the_queue(stage: Stage) -> None:
    holder, waiter = stage.worker(), stage.worker()
    holder.acquire().step()
    waiter.acquire(wait=1.0).step()
    stage.pass_time(1.1)
    assert waiter.finish() is None
    assert stage.waiters() == []


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
def test_an_acquisition_whose_connection_broke_leaves_nothing(stage: Stage, lose: object) -> None:
    worker = stage.worker().acquire()
    lose(worker)  # type: ignore[operator]
    worker.finish()
    assert not worker.believes
    assert stage.left() == []


@pytest.mark.parametrize("lose", [Worker.lose_reply, Worker.lose_request])
def test_a_waiter_whose_connection_broke_goes_on_waiting(stage: Stage, lose: object) -> None:
    holder, waiter = stage.worker(), stage.worker()
    holder.acquire().step()
    waiter.acquire().step()
    holder.release().step()
    lose(waiter)  # type: ignore[operator]
    waiter.step()
    assert waiter.believes


def test_asking_again_with_the_same_token_answers_the_same(stage: Stage) -> None:
    worker = stage.worker().acquire()
    worker.step()
    before = worker.granted
    worker.acquire().step()
    assert worker.granted
    assert before
    assert worker.granted.fence_token == before.fence_token


def acquire_as_semaphore(stage: Stage) -> object:
    asked = ("semaphore", 3, 1, 1000, 1000, stage.keys.name, "t", 0, "", "{}", 1000)
    return stage.client.eval(ACQUIRE.source, 6, *stage.keys.all, *asked)


def test_another_kind_is_refused_while_somebody_waits_for_a_lock_that_ran_out(
    stage: Stage,
) -> None:
    holder, waiter = stage.worker(), stage.worker()
    holder.acquire().step()
    waiter.acquire().step()
    holder.die()
    stage.pass_time(LEASE - 1)
    waiter.step()
    waiter.step()
    stage.pass_time(1.1)
    assert stage.holders() == set()
    assert acquire_as_semaphore(stage) == b"mutex"
    waiter.step()
    waiter.step()
    assert waiter.believes


def test_another_kind_under_the_same_name_is_refused_while_it_is_held(stage: Stage) -> None:
    holder = stage.worker().acquire()
    holder.step()
    assert acquire_as_semaphore(stage) == b"mutex"


def test_a_turn_that_was_taken_away_before_it_was_known_does_not_count(stage: Stage) -> None:
    holder, waiter, other = (stage.worker() for _ in range(3))
    for worker in (holder, waiter, other):
        worker.acquire().step()
    holder.release().step()
    assert stage.force_release() == ("w1",)
    waiter.step()
    waiter.step()
    assert not waiter.believes
    other.step()
    assert other.believes


def test_a_short_claim_does_not_cut_short_the_lease_of_another_holder(semaphore: Stage) -> None:
    stays, leaves = semaphore.worker(), semaphore.worker(weight=2)
    waiter = semaphore.worker()
    for worker in (stays, leaves, waiter):
        worker.acquire().step()
    leaves.release().step()
    assert semaphore.holders() == {"w0", "w2"}
    waiter.die()
    semaphore.pass_time(flows.CLAIM + 0.1)
    assert stays.believes
    assert "w0" in semaphore.holders()
    stays.renew()
    assert stays.believes


def test_a_holder_that_ran_out_gives_back_its_own_weight_and_no_more(semaphore: Stage) -> None:
    heavy, light = semaphore.worker(weight=2), semaphore.worker()
    light.acquire().step()
    semaphore.pass_time(LEASE / 2)
    heavy.acquire().step()
    semaphore.pass_time(LEASE / 2 + 0.1)
    assert heavy.believes
    assert semaphore.worker(weight=2).acquire(wait=0).finish() is None
    assert semaphore.worker().acquire(wait=0).finish()
    assert semaphore.worker().acquire(wait=0).finish() is None


def test_one_of_several_holders_goes_and_the_others_stay(semaphore: Stage) -> None:
    holders = [semaphore.worker().acquire() for _ in range(3)]
    for holder in holders:
        holder.step()
    holders[1].release().step()
    assert semaphore.holders() == {"w0", "w2"}
    assert semaphore.worker(weight=2).acquire(wait=0).finish() is None
    assert semaphore.worker().acquire(wait=0).finish()


@pytest.mark.parametrize("gives_up", ["time is over", "connection broke"])
def test_who_gives_up_at_the_head_lets_those_behind_it_in_at_once(
    semaphore: Stage, gives_up: str
) -> None:
    holder, heavy, light = semaphore.worker(), semaphore.worker(weight=3), semaphore.worker()
    holder.acquire().step()
    heavy.acquire(wait=1.0).step()
    light.acquire().step()
    if gives_up == "time is over":
        semaphore.pass_time(1.1)
    else:
        heavy.step()
        heavy.lose_request()
    heavy.finish()
    assert semaphore.holders() == {"w0", "w2"}


def test_a_lease_that_is_over_when_it_is_told_of_is_asked_for_again(stage: Stage) -> None:
    worker = stage.worker().acquire()
    worker.arrive()
    stage.pass_time(LEASE + 0.1)
    worker.step()
    assert worker.op
    worker.step()
    assert worker.believes


def test_a_turn_that_is_popped_late_is_asked_for_again(stage: Stage) -> None:
    holder, waiter = stage.worker().acquire(), stage.worker()
    holder.step()
    waiter.acquire().arrive()  # it stands in the queue, and is not told so yet
    holder.release().step()
    stage.pass_time(flows.CLAIM - 0.1)
    waiter.step()
    waiter.step()  # it pops the turn at once
    assert not waiter.believes
    assert waiter.finish()
    assert waiter.believes


def test_turns_go_by_the_limit_of_who_asked_last(semaphore: Stage) -> None:
    holders = [semaphore.worker().acquire() for _ in range(3)]
    for holder in holders:
        holder.step()
    waiter = semaphore.worker(capacity=1).acquire()
    waiter.step()
    for holder in holders:
        assert "w3" not in semaphore.holders()
        holder.release().step()
    waiter.step()
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


def test_a_kind_is_that_of_the_first_who_is_alive(semaphore: Stage) -> None:
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
