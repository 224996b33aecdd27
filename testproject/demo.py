"""``python -m testproject.demo``: the whole story on a real site, in about half a minute.

In a terminal the site then stays up until Ctrl-C; without one, or with
``DEMO_ONCE=1``, it ends: with 0, or with 1 if a figure is not as it must be.
"""

import contextlib
import os
import secrets
import sys
import urllib.request
from dataclasses import dataclass, field

from .stage import Failed, Stage, free_port, set_up

CHILDREN = 4
"""The processes of each Celery worker."""


def main() -> int:
    try:
        with set_up() as stage:
            return play(stage)
    except Failed as error:
        print(f"The demo failed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def play(stage: Stage) -> int:
    start_site(stage)
    wrong = perform(stage)
    for each in wrong:
        print(f"Not as it must be: {each}", file=sys.stderr)
    if stays_up():
        # Ctrl-C is here the ordinary end.
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
    print(f"Valkey on port {port}, SQLite, two Celery workers of {CHILDREN} processes each")


def start_worker(stage: Stage, name: str) -> None:
    # What keeps many workers informed of each other only makes two start slowly.
    quick = ["--without-gossip", "--without-mingle", "--without-heartbeat"]
    size = f"--concurrency={CHILDREN}"
    worker = ["-m", "celery", "-A", "testproject", "worker", "-n", f"{name}@%h", size, "-lINFO"]
    stage.start(name, *worker, *quick)


def workers() -> set[str]:
    from . import celery_app

    replies = celery_app.control.ping(timeout=0.5) or []
    return {name for reply in replies for name in reply}


def perform(stage: Stage) -> list[str]:
    from . import acts

    return [
        *acts.oversell_act(stage),
        *acts.report_act(stage),
        *acts.command_act(stage),
    ]


# What follows is for a reader with a terminal.


@dataclass
class Login:
    name: str
    may: str
    password: str = field(default_factory=lambda: secrets.token_urlsafe(6))


def keep_site_up(stage: Stage) -> None:
    logins = [Login("admin", "may release locks"), Login("staff", "may only look at them")]
    make_users(*logins)
    address = start_web(stage)
    print(f"\nThe admin is up:  {address}")
    for login in logins:
        print(f"  log in as {login.name} / {login.password}   ({login.may})")
    print(
        "Some tasks go on working, so that there are locks to see. Ctrl-C ends it all.", flush=True
    )
    stay_busy(stage)


def make_users(admin: Login, staff: Login) -> None:
    from django.contrib.auth.models import Permission, User

    User.objects.create_superuser(admin.name, password=admin.password)
    looker = User.objects.create_user(staff.name, password=staff.password, is_staff=True)
    looker.user_permissions.set(Permission.objects.filter(codename="view_activelock"))


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
"""The indexes that are being rebuilt, and for how many seconds: two want the same one."""


def stay_busy(stage: Stage) -> None:
    from .outcome import Sent
    from .shop.tasks import rebuild

    running = {job: Sent(rebuild, *job) for job in BUSY}
    while True:
        stage.pause(1)
        for job, sent in running.items():
            if sent.has_ended():
                running[job] = Sent(rebuild, *job)


if __name__ == "__main__":
    sys.exit(main())
