"""Fifty waiters ride through a failover, and many threads ask a Cluster that is down."""

from contextlib import suppress

import pytest
from django.test import override_settings
from redis.exceptions import ClusterDownError

from django_redislock import locks
from django_redislock.conf import conf
from django_redislock.keys import Keys
from tests.lock_tools import start
from tests.outages import survive
from tests.servers import Cluster, Sentinels
from tests.tools import wait_until

from . import places

pytestmark = pytest.mark.timeout(300)

KINDS = pytest.mark.parametrize("kind", ["threads", "tasks"])

DOWN_AFTER = 1000  # milliseconds


@KINDS
@pytest.mark.parametrize("place", ["core_sentinels", "django_redis_sentinels"])
def test_a_failover_by_sentinels_serves_all_waiters(place, kind):
    name = f"{place}-{kind}".replace("_", "-")
    with Sentinels(name=name, down_after=DOWN_AFTER) as running:

        def fail_over():
            running.wait_in_sync()
            old = running.master
            old.kill()
            running.wait_for_new_master(old)

        arguments = {"url": f"redis://{name}/0", "sentinels": running.addresses}
        with override_settings(**places.settings(place, arguments)):
            survive(locks, kind, fail_over)


@KINDS
def test_a_failover_in_a_cluster_serves_all_waiters(kind):
    with Cluster() as running:
        slot = running.client().keyslot(Keys(conf.prefix).index)

        def fail_over():
            running.wait_in_sync()
            old = running.owner(slot)
            old.kill()
            running.wait_for_new_owner(slot, old)

        with override_settings(**places.settings("cluster", {"startup": running.startup})):
            survive(locks, kind, fail_over)


def test_many_threads_get_the_error_of_a_cluster_that_is_down():
    with Cluster(replicas=0) as running:
        owner = running.owner(running.client().keyslot(Keys(conf.prefix).index))
        other = next(each for each in running.nodes if each is not owner)

        def ask(number):
            for _ in range(2):
                with suppress(ClusterDownError):
                    locks.lock(f"n{number}").acquire(blocking_timeout=0.3)

        with override_settings(**places.settings("cluster", {"startup": running.startup})):
            assert locks.count() == 0
            other.kill()
            wait_until(lambda: "cluster_state:fail" in owner.ask("CLUSTER", "INFO"), timeout=60)
            asked = [start(ask, number) for number in range(20)]
            assert [each.result(120) for each in asked] == [None] * 20
