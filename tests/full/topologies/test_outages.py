"""Fifty waiters ride through a failover."""

import pytest
from django.test import override_settings

from django_redislock import locks
from django_redislock.conf import conf
from django_redislock.keys import Keys
from tests.outages import survive
from tests.servers import Cluster, Sentinels

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
