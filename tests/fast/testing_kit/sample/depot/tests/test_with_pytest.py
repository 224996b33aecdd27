import pytest
from celery.contrib.testing.worker import start_worker
from django.core.cache import cache
from redis.exceptions import ConnectionError

from depot import orders
from depot.celery import app
from depot.tasks import count, ship
from django_redislock import LockLost
from django_redislock.testing import (
    assert_nothing_held,
    assert_retried,
    assert_skipped,
    conflict,
    held_elsewhere,
    lose,
)


def test_an_order_that_is_being_paid_is_refused(client):
    with held_elsewhere("order:7"):
        assert client.post("/orders/7/pay/").status_code == 409
        assert client.post("/orders/8/pay/").status_code == 200


def test_nothing_is_charged_when_the_lock_is_lost(monkeypatch):
    charged = []
    monkeypatch.setattr(orders, "reserve", lambda order_id: lose(f"order:{order_id}"))
    monkeypatch.setattr(orders, "charge", charged.append)
    with pytest.raises(LockLost):
        orders.pay(7)
    assert charged == []


def test_a_depot_is_not_counted_twice_at_a_time():
    with conflict(count, 7) as other, assert_skipped(count) as skips:
        assert count.apply([7]).result is None
        assert count.apply([8]).result == "depot 8 is counted"
    assert skips[0]["holder_task_id"] == other.task_id


def test_an_order_is_shipped_when_the_other_is_done():
    with start_worker(app, perform_ping_check=False):
        with conflict(ship, 7), assert_retried(ship, within=10):
            result = ship.delay(7)
        assert result.get(timeout=60) == "order 7 is shipped"


def test_a_payment_leaves_nothing_held():
    orders.pay(7)
    assert_nothing_held()


def test_without_redis_nothing_is_paid(embedded_redis):
    embedded_redis.stop()
    with pytest.raises(ConnectionError):
        orders.pay(7)


@pytest.mark.parametrize("turn", [1, 2])
def test_each_test_begins_with_nothing(turn):
    assert cache.get("turn") is None
    cache.set("turn", turn)
