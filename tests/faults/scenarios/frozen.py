"""Processes and servers pause for longer than a lease, and then continue."""

from ..scenario import Run, Setting, Shared, scenario
from .killed import LEASES, UNTIL_FREE, take_turns, until_free

LONG_LEASES = 1.0, 1.5  # long enough for the setup on a busy machine


@scenario(
    2,
    "SIGSTOP past the lease, then SIGCONT",
    runs=200,
    short=6,
    operations=3,
    free_within=UNTIL_FREE,
)
def frozen(setting: Setting) -> None:
    """Three clients take turns. One is stopped at a random point, usually while it holds."""
    node = setting.node()

    def body(run: Run) -> None:
        lease = run.random.uniform(*LEASES)
        clients = take_turns(run, node, lease)
        victim, *others = run.random.sample(clients, 3)
        if run.random.random() < 0.8:
            stopped = victim.catch("checked")
        else:
            victim.wait_for("held")
            run.moment(0.2)
            stopped = victim.stop()
        run.moment(lease * 2, shortest=lease * 1.1)
        for other in others:
            other.wait_for("held", after=stopped["t"])
        resumed = victim.resume()
        for client in clients:
            client.wait_for("released", after=resumed["t"])

    setting.each(body, lanes=6)


@scenario(
    3,
    "Pause between check and write",
    runs=150,
    short=6,
    operations=2,
    free_within=until_free(max(LONG_LEASES)),
)
def between_check_and_write(setting: Setting) -> None:
    """A client checks its lock, is stopped while the next holder writes, and then writes."""
    node = setting.node()

    def body(run: Run) -> None:
        late, other = run.clients(node, "late", "other")
        late.ask("acquire", lock=run.lock, timeout=run.random.uniform(*LONG_LEASES))
        other.start("acquire", lock=run.lock)
        other.wait_for("queued")
        late.start("write", lock=run.lock, stops=True)
        late.stops_itself()
        assert other.answer()
        assert other.ask("write", lock=run.lock) == {"wrote": True, "accepted": True}
        late.resume()
        assert late.answer() == {"wrote": True, "accepted": False}
        assert late.ask("release", lock=run.lock)["error"] == "LockLost"
        assert other.ask("write", lock=run.lock) == {"wrote": True, "accepted": True}
        other.ask("release", lock=run.lock)

    setting.each(body, lanes=6)
    setting.notes.append("without a fencing token, every late write succeeded")


@scenario(
    10, "Redis paused past the lease", runs=100, short=4, operations=3, free_within=UNTIL_FREE
)
def paused(setting: Setting) -> None:
    """Three clients take turns while the server pauses for longer than the lease."""
    nodes = Shared(setting.node() for _ in range(4))

    def body(run: Run) -> None:
        lease = run.random.uniform(*LEASES)
        with nodes.one() as node:
            clients = take_turns(run, node, lease, work=(0, lease))
            run.random.choice(clients).wait_for("held")
            run.moment(lease)
            with run.paused(node):
                run.moment(lease * 2.5, shortest=lease * 1.2)
            back = run.free()
            for client in clients:
                client.wait_for("held", after=back)

    setting.each(body, lanes=4)
