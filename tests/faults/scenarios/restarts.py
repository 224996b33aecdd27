"""Servers that are killed and started again."""

from tests.servers import Node

from .. import keeping
from ..scenario import EXCLUSION, Run, Setting, scenario

TROUBLE = "ConnectionError", "BusyLoadingError", "TimeoutError"

UNTIL_FREE = 3.0
"""Seconds: the places of those who had to ask anew are still there."""


@scenario(
    7,
    "Server killed and restarted: empty",
    runs=40,
    short=4,
    operations=3,
    may_fail=(EXCLUSION,),
    errors=TROUBLE,
)
def empty(setting: Setting) -> None:
    nodes, crew = setting.shared([setting.node() for _ in range(4)]), setting.crew()
    told: list[float] = []

    def body(run: Run) -> None:
        with nodes.one() as node:
            lease = run.random.uniform(*keeping.LEASES)
            keeper, others = keeping.begin(run, crew, node, lease=lease)
            run.log.write("taken", lock=run.lock)
            back = restart(run, node)
            keeping.go_on(others, back)
            told.append(keeping.until_told(keeper, back, lease))

    setting.each(body, lanes=4)
    keeping.tell_how_soon(setting, told, "the server was back")


def with_a_file(setting: Setting, sync: str) -> int:
    """How many kept their lock."""
    files = {"appendonly": "yes", "appendfsync": sync}
    nodes = setting.shared([setting.node(**files) for _ in range(4)])
    crew = setting.crew()
    ends: list[str] = []

    def body(run: Run) -> None:
        with nodes.one() as node:
            keeper, others = keeping.begin(run, crew, node, lease=run.random.uniform(5, 8))
            if sync == "everysec":
                run.log.write("taken", lock=run.lock)
            back = restart(run, node)
            keeper.wait_for("kept", after=back)
            ends.append(keeping.let_go(keeper))
            keeping.go_on(others, back)

    setting.each(body, lanes=4)
    return ends.count("released")


@scenario(
    7,
    "Server killed and restarted: with AOF everysec",
    runs=40,
    short=4,
    operations=3,
    free_within=UNTIL_FREE,
    may_fail=(EXCLUSION,),
    errors=TROUBLE,
)
def everysec(setting: Setting) -> None:
    """A killed process loses what it had not yet written: up to two seconds, where the disk is
    slow to sync. A machine that goes down loses a second more."""
    kept = with_a_file(setting, "everysec")
    setting.notes.append(f"{kept} of {setting.runs} holders kept their lock")


@scenario(
    7,
    "Server killed and restarted: with AOF always",
    runs=40,
    short=4,
    operations=3,
    free_within=UNTIL_FREE,
    errors=TROUBLE,
)
def always(setting: Setting) -> None:
    kept = with_a_file(setting, "always")
    assert kept == setting.runs, f"only {kept} kept their lock"


def restart(run: Run, node: Node) -> float:
    """When it was back."""
    run.moment(0.5)
    run.fault("server killed")
    run.log.write("away", lock=run.lock)
    node.kill()
    run.moment(0.5)
    node.start()
    return float(run.log.write("back", lock=run.lock)["t"])
