import pytest
from django.core.cache import cache
from redis.exceptions import ConnectionError

from depot import orders
from django_redislock import LockNotAcquired
from django_redislock.testing import held_elsewhere


def test_an_order_that_is_being_paid_is_refused():
    with held_elsewhere("order:7"), pytest.raises(LockNotAcquired):
        orders.pay(7)
    orders.pay(7)


def test_without_redis_nothing_is_paid(embedded_redis):
    embedded_redis.stop()
    with pytest.raises(ConnectionError):
        orders.pay(7)


@pytest.mark.parametrize("turn", [1, 2])
def test_each_test_begins_with_nothing(turn):
    assert cache.get("turn") is None
    cache.set("turn", turn)
