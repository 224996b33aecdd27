"""``python -m testproject.gallery.actor_server ADDRESS``: fork an actor for each connection."""

import os
import signal
import sys
from multiprocessing.connection import Listener

import django

django.setup()

from django.conf import settings  # noqa: E402
from redis import Redis  # noqa: E402

from . import exhibits  # noqa: E402, F401  for the actors
from .actor_process import play  # noqa: E402

BACKLOG = 128


def main(address: str) -> None:
    # The first connection of redis-py takes long, because it imports modules.
    with Redis.from_url(settings.REDIS_URL) as client:
        client.ping()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no process waits for the actors
    with Listener(address, backlog=BACKLOG) as listener:
        print("ready", flush=True)
        while True:
            with listener.accept() as line:
                if os.fork() == 0:
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    play(line)


if __name__ == "__main__":
    main(sys.argv[1])
