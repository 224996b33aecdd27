"""Processes that are killed."""

from ..scenario import Run, Setting, scenario

GRACE = 2.0
"""Seconds that a busy machine may take on top of what is promised."""

LEASES = 0.3, 1.0


@scenario(
    1,
    "SIGKILL of the holder",
    runs=300,
    short=24,
    operations=2,
    free_within=max(LEASES) + 0.5 + GRACE,
)
def holder(setting: Setting) -> None:
    """Three clients take turns, and one of them is killed."""
    node, crew = setting.node(), setting.crew()

    def body(run: Run) -> None:
        lease = run.random.uniform(*LEASES)
        clients = [run.client(crew, who, node.url) for who in ("first", "second", "third")]
        for client in clients:
            client.start("loop", lock=run.lock, timeout=lease, work=(0.01, 0.04))
        victim = run.random.choice(clients)
        victim.wait_for("held")
        run.moment(run.random.choice((0.02, 0.2)))  # while it holds, mostly; or anywhere
        victim.kill()
        for client in clients:
            if client is not victim:
                client.wait_for("released", after=victim.died)

    setting.each(body, lanes=8)
