"""``python -m testproject.demo``: a tour of the package on a real site, in about half a minute.

In a terminal, the site then stays up until you press Ctrl-C. Without a terminal, or with
``DEMO_ONCE=1``, the demo exits: with 0, or with 1 if a result is not as expected.
"""

import contextlib
import os
import secrets
import sys
import urllib.request
from dataclasses import dataclass, field

from .stage import DemoError, Stage, free_port, set_up

POOL_PROCESSES = 4
"""Number of pool processes of each Celery worker."""


def main() -> int:
    try:
        with set_up() as stage:
            return play(stage)
    except DemoError as error:
        print(f"The demo failed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def play(stage: Stage) -> int:
    start_site(stage)
    wrong = perform(stage)
    for each in wrong:
        print(f"Not as expected: {each}", file=sys.stderr)
    if stays_up():
        # The user ends the demo with Ctrl-C.
        with contextlib.suppress(KeyboardInterrupt):
            keep_site_up(stage)
    return 1 if wrong else 0


def stays_up() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty() and not os.environ.get("DEMO_ONCE")


def start_site(stage: Stage) -> None:
    from django.core.management import call_command

    for number in (1, 2):
        start_worker(stage, f"worker{number}")
    call_command("migrate", verbosity=0)
    stage.wait_for("two workers", lambda: len(workers()) == 2)
    port = stage.server.port
    print(f"Valkey on port {port}, SQLite, two Celery workers of {POOL_PROCESSES} processes each")


def start_worker(stage: Stage, name: str) -> None:
    # Two workers do not need gossip, mingle and heartbeats, and start faster without them.
    quick = ["--without-gossip", "--without-mingle", "--without-heartbeat"]
    size = f"--concurrency={POOL_PROCESSES}"
    worker = ["-m", "celery", "-A", "testproject", "worker", "-n", f"{name}@%h", size, "-lINFO"]
    stage.start(name, *worker, *quick)


def workers() -> set[str]:
    from . import celery_app

    replies = celery_app.control.ping(timeout=0.5) or []
    return {name for reply in replies for name in reply}


def perform(stage: Stage) -> list[str]:
    from . import parts

    return [
        *parts.show_oversell(stage),
        *parts.show_reports(stage),
        *parts.show_command(stage),
    ]


# The rest runs only in a terminal.


@dataclass
class Login:
    name: str
    permission: str
    password: str = field(default_factory=lambda: secrets.token_urlsafe(6))


def keep_site_up(stage: Stage) -> None:
    logins = [Login("admin", "can release locks"), Login("staff", "can only view locks")]
    make_users(*logins)
    address = start_web(stage)
    print(f"\nThe admin is up:  {address}")
    for login in logins:
        print(f"  log in as {login.name} / {login.password}   ({login.permission})")
    print(
        "Some tasks keep running, so that there are locks to see. Press Ctrl-C to exit.",
        flush=True,
    )
    stay_busy(stage)


def make_users(admin: Login, staff: Login) -> None:
    from django.contrib.auth.models import Permission, User

    User.objects.create_superuser(admin.name, password=admin.password)
    viewer = User.objects.create_user(staff.name, password=staff.password, is_staff=True)
    viewer.user_permissions.set(Permission.objects.filter(codename="view_activelock"))


def start_web(stage: Stage) -> str:
    place = f"127.0.0.1:{free_port()}"
    # --insecure: runserver serves the admin's style sheets without DEBUG.
    stage.start("web", "testproject/manage.py", "runserver", "--noreload", "--insecure", place)
    address = f"http://{place}/admin/django_redislock/activelock/"
    stage.wait_for("the site", lambda: answers(address))
    return address


def answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=5) as page:  # noqa: S310  our own address
            return bool(page.status == 200)
    except OSError:
        return False


BUSY = [("products", 40.0), ("products", 20.0), ("customers", 25.0), ("prices", 60.0)]
"""The indexes to rebuild, and the seconds that each takes. Two tasks compete for one index."""


def stay_busy(stage: Stage) -> None:
    from .sent_task import SentTask
    from .shop.tasks import rebuild

    running = {job: SentTask(rebuild, *job) for job in BUSY}
    while True:
        stage.pause(1)
        for job, sent in running.items():
            if sent.has_ended():
                running[job] = SentTask(rebuild, *job)


if __name__ == "__main__":
    sys.exit(main())
