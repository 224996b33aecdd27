from django.test import TestCase

from depot import orders
from django_redislock import LockLost, LockNotAcquired, locks
from django_redislock.testing import (
    alose,
    assert_nothing_held,
    embedded_redis,
    held_elsewhere,
)


@embedded_redis()
class OrderTests(TestCase):
    def setUp(self):
        self.addCleanup(assert_nothing_held)

    def test_an_order_that_is_being_paid_is_refused(self):
        with held_elsewhere("order:7"), self.assertRaises(LockNotAcquired):
            orders.pay(7)

    async def test_a_coroutine_learns_that_its_lock_is_lost(self):
        with self.assertRaises(LockLost):
            async with locks.lock("stock") as lock:
                await alose("stock")
                lock.assert_held()


class OneTest(TestCase):
    @embedded_redis()
    def test_an_order_is_paid(self):
        orders.pay(7)
