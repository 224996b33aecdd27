import pytest
from django.core.cache import cache
from redis.exceptions import ConnectionError

from depot import orders
from django_redislock.testing import assert_nothing_held, held_elsewhere


def test_an_order_that_is_being_paid_is_refused(client):
    with held_elsewhere("order:7"):
        assert client.post("/orders/7/pay/").status_code == 409
        assert client.post("/orders/8/pay/").status_code == 200


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
