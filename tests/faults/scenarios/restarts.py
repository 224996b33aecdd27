"""Servers that are killed and started again."""

from .. import keeping
from ..keeping import Kept
from ..scenario import EXCLUSION, Setting, scenario

TROUBLE = "ConnectionError", "BusyLoadingError", "TimeoutError"

FACTS = {"runs": 40, "short": 4, "operations": 3, "errors": TROUBLE}

UNTIL_FREE = 3.0  # seconds: the places of waiters that asked again are still there


@scenario(7, "Server killed and restarted: empty", may_fail=(EXCLUSION,), **FACTS)
def empty(setting: Setting) -> None:
    def strike(kept: Kept) -> float:
        kept.run.log.write("taken", lock=kept.run.lock)
        return restart(kept)

    keeping.lose(setting, strike, "the server was back")


def with_a_file(setting: Setting, sync: str) -> int:
    """How many holders kept their lock."""
    ends: list[str] = []

    def body(kept: Kept) -> None:
        if sync == "everysec":
            kept.run.log.write("taken", lock=kept.run.lock)
        back = restart(kept)
        kept.keeper.wait_for("kept", after=back)
        ends.append(kept.let_go())
        kept.go_on(back)

    keeping.each(setting, body, leases=(5, 8), appendonly="yes", appendfsync=sync)
    return ends.count("released")


@scenario(
    7,
    "Server killed and restarted: with AOF everysec",
    free_within=UNTIL_FREE,
    may_fail=(EXCLUSION,),
    **FACTS,
)
def everysec(setting: Setting) -> None:
    """A killed process loses what it had not yet written: up to two seconds, if the disk is slow
    to sync. A machine that goes down loses a second more."""
    kept = with_a_file(setting, "everysec")
    setting.notes.append(f"{kept} of {setting.runs} holders kept their lock")


@scenario(7, "Server killed and restarted: with AOF always", free_within=UNTIL_FREE, **FACTS)
def always(setting: Setting) -> None:
    kept = with_a_file(setting, "always")
    assert kept == setting.runs, f"only {kept} kept their lock"


def restart(kept: Kept) -> float:
    """When it was back."""
    run = kept.run
    run.moment(0.5)
    run.fault("server killed")
    run.log.write("away", lock=run.lock)
    kept.node.kill()
    run.moment(0.5)
    kept.node.start()
    return float(run.log.write("back", lock=run.lock)["t"])
