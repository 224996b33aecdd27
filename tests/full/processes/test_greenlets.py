"""A process that gevent has patched too late, or in part."""

import sys

import pytest

from tests.commands import run_process

REFUSED = """
import sys
from gevent import monkey
if sys.argv[1] == "in part":
    monkey.patch_all(thread=False)
import django, gevent
django.setup()
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django_redislock import locks

if sys.argv[1] == "late":
    with locks.lock("a"):
        pass
    monkey.patch_all()

def use():
    try:
        with locks.lock("a", timeout=5):
            gevent.sleep(0.1)
        return "used"
    except ImproperlyConfigured:
        return "refused"

greenlets = [gevent.spawn(use) for _ in range(3)]
gevent.joinall(greenlets)
found = checks.run_checks(tags=["caches"])
print(*[each.value for each in greenlets], *[each.id for each in found])
"""


@pytest.mark.timeout(60)
@pytest.mark.parametrize("patched", ["in part", "late"])
def test_a_process_that_is_not_patched_as_it_must_be_refuses_locks(redis_server, patched):
    """Without an error it would wait forever."""
    done = run_process(program=[sys.executable, "-c", REFUSED, patched])
    assert done.stdout == "refused refused refused redislock.E005\n", done.stderr
