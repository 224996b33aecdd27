"""Wall clocks that are set, while locks are held and waited for. The clock that nobody can set,
by which holders judge their leases, goes on as ever."""

import select
import time

from django_redislock.clock import now
from django_redislock.engine import drivers, flows
from tests.servers.clock import Clock

from .. import keeping
from ..client import Client
from ..crew import KEYS
from ..keeping import GRACE, LANES, Kept
from ..scenario import EXCLUSION, ORDER, Run, Setting, scenario

HOUR = 3600.0

LEASE = 2.5


def set_forward(run: Run, clock: Clock, seconds: float) -> float:
    """When that was."""
    run.fault("clock set", seconds=seconds)
    clock.move(seconds)
    return now()


@scenario(
    12,
    "The server's clock is set forward, past all leases",
    runs=40,
    short=4,
    operations=3,
    may_fail=(EXCLUSION, ORDER),
)
def forward(setting: Setting) -> None:
    """It ends all leases, and the heartbeats of all waiters expire."""

    def strike(kept: Kept) -> float:
        run = kept.run
        run.moment(0.5)
        run.log.write("taken", lock=run.lock)
        return set_forward(run, kept.clock, run.random.choice((5, 60, HOUR)))

    keeping.lose(setting, strike, clocks=True)


@scenario(
    12,
    "The server's clock is set back by an hour",
    runs=40,
    short=4,
    operations=3,
    free_within=GRACE,
    may_fail=(ORDER,),
)
def back(setting: Setting) -> None:
    """Waiters from before that are queued behind those who come later."""

    def body(kept: Kept) -> None:
        kept.run.moment(0.5)
        since = set_forward(kept.run, kept.clock, -HOUR)
        if kept.run.random.random() < 0.5:
            kept.keeper.wait_for("kept", after=since)
        assert kept.let_go() == "released"
        kept.go_on(since)

    keeping.each(setting, body, clocks=True)


@scenario(
    12,
    "The server's clock is set back by an hour, and the holder dies",
    runs=20,
    short=2,
    faults=2,
    operations=3,
    free_within=LEASE * 1.1 + GRACE,
    may_fail=(ORDER,),
    wake_within=10,
)
def back_and_dead(setting: Setting) -> None:
    """What it held stays for an hour more, or until somebody releases it by force."""

    def body(kept: Kept) -> None:
        run, node = kept.run, kept.node
        since = set_forward(run, kept.clock, -HOUR)
        kept.keeper.kill()
        time.sleep(LEASE * 1.1)
        info = run.info(node)
        assert info, "it came free by itself"
        assert HOUR - 60 < info.ttl <= HOUR + LEASE, info.ttl
        run.free()
        with node.client(decode_responses=False) as client:
            [gone] = drivers.run(client, flows.force_release(KEYS.of(run.lock), None))
        assert gone == info.token
        kept.go_on(since)

    keeping.each(setting, body, leases=(LEASE, LEASE), clocks=True)
    setting.notes.append("it stayed until it was released by force")


@scenario(
    12,
    "The clients' wall clocks are set",
    runs=20,
    short=2,
    faults=10,
    operations=3,
    free_within=GRACE,
    at_once=True,
)
def clients(setting: Setting) -> None:
    """Nothing happens."""
    clock = Clock(setting.folder / "clock")
    node, crew = setting.node(), setting.crew(**clock.environment)

    def body(run: Run) -> None:
        kept = keeping.begin(run, crew, node, first=SLEEP_OTHERWISE)
        for _ in range(10):
            run.moment(0.3)
            set_forward(run, clock, run.random.choice((-HOUR, -5, 5, HOUR)))
        assert kept.let_go() == "released"
        kept.go_on(now())

    setting.each(body, lanes=LANES)


# What the clients do

SLEEP_OTHERWISE = f"{__name__}:sleep_otherwise"


def sleep_otherwise(client: Client) -> None:
    """libfaketime takes a sleep of Python's for one by the wall clock, and fails it."""
    time.sleep = lambda seconds: select.select([], [], [], seconds) and None
