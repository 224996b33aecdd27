"""A server that stands still."""

from ..scenario import Run, Setting, Shared, scenario
from .killed import LEASES, UNTIL_FREE, take_turns


@scenario(
    10, "Redis paused past the lease", runs=100, short=4, operations=3, free_within=UNTIL_FREE
)
def paused(setting: Setting) -> None:
    """Three clients take turns while the server stands still for longer than the lease."""
    nodes, crew = Shared(setting.node() for _ in range(4)), setting.crew()

    def body(run: Run) -> None:
        lease = run.random.uniform(*LEASES)
        with nodes.one() as node:
            clients = take_turns(run, crew, node, lease, work=(0, lease))
            run.random.choice(clients).wait_for("held")
            run.moment(lease)
            with run.paused(node):
                run.moment(lease * 2.5, shortest=lease * 1.2)
            back = run.free()
            for client in clients:
                client.wait_for("held", after=back)

    setting.each(body, lanes=4)
