"""Many threads ask a Cluster that is down. `tests/faults` has failovers."""

from contextlib import suppress

import pytest
from django.test import override_settings
from redis.exceptions import ClusterDownError

from django_redislock import locks
from django_redislock.conf import conf
from django_redislock.keys import Keys
from tests.lock_tools import start
from tests.servers import Cluster
from tests.tools import wait_until

from . import places

pytestmark = pytest.mark.timeout(300)


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
