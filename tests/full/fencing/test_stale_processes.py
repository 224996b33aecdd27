"""The first of two processes is suspended past its lease, and writes after the second."""

import psutil
import pytest

from django_redislock import locks
from tests.fencing.tools import account, stored
from tests.tools import Child

WRITER = """
from django.db import connections
from django_redislock import StaleLock, locks
from django_redislock.fencing import fenced
from tests.fencing.models import Account

using, act, balance, stop_at = sys.argv[1:]

def stop_before_the_first_write(execute, sql, params, many, context):
    global stop_at
    if sql.startswith(stop_at):
        stop_at = "never"
        say("stops")
        hear()
    return execute(sql, params, many, context)

def write(lock):
    if act == "update":
        fenced(rows, lock).update(balance=int(balance))
    else:
        account.balance = int(balance)
        fenced(account, lock).save(update_fields=["balance"])

rows = Account.objects.using(using)
account = rows.get()
lock = locks.lock("account", timeout=1, blocking_timeout=20)
assert lock.acquire()
say(f"holds {lock.fence_token}")
hear()
with connections[using].execute_wrapper(stop_before_the_first_write):
    try:
        write(lock)
    except StaleLock as error:
        say(f"stale {error.token} {error.found}")
    else:
        say("wrote")
hear()
"""


class Writer(Child):
    """A process that holds the lock, and writes `balance` when it receives a line."""

    def __init__(self, using, act, balance, *, stop_at="never", **environment):
        super().__init__(WRITER, using, act, str(balance), stop_at, **environment)

    def token(self):
        return int(self.expect("holds"))

    def stop(self):
        psutil.Process(self.pid).suspend()  # SIGSTOP also stops the renewal

    def resume(self):
        psutil.Process(self.pid).resume()


@pytest.mark.parametrize("act", ["update", "save"])
def test_a_writer_that_was_suspended_just_before_its_write_is_stale(using, act, environment):
    row = account(using)
    with Writer(using, act, 1, stop_at="UPDATE", **environment) as first:
        old = first.token()
        first.tell("write")
        first.expect("stops")  # it has checked its lock, and is about to send the UPDATE
        first.stop()
        with Writer(using, act, 2, **environment) as second:
            new = second.token()
            second.tell("write")
            second.expect("wrote")
        first.resume()
        first.tell("go on")
        assert first.expect("stale") == f"{old} {new}"
    found = stored(row)
    assert (found.balance, found.fence) == (2, new)
    locks.force_release("account")
