"""A thread waits for its turn to use a connection pool."""

from functools import partial

from django_redislock.engine.gate import ThreadGate
from tests.lock_tools import start
from tests.tools import wait_until


def test_a_call_that_is_woken_without_a_slot_waits_on():
    gate = ThreadGate(2)
    gate.slots.popleft()
    waits = start(partial(gate.wait, is_urgent=False))
    wait_until(lambda: gate.waiting)
    gate.wake()  # another call takes the slot before the one that is woken
    wait_until(lambda: gate._others)
    gate.slots.append(None)
    gate.wake()
    waits.result(60)
    assert not gate.slots
