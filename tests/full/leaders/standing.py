"""A process that stands for leader. It appends what it does to a file, with the time.

python -m tests.full.leaders.standing FILE LEASE
"""

import os
import sys
import time

import django

PACE_SECONDS = 0.02


def main(file: str, lease: float) -> None:
    django.setup()
    from django_redislock import locks

    out = os.open(file, os.O_WRONLY | os.O_APPEND)

    def note(word: str, token: int) -> None:
        # One write, because several processes append to the file.
        os.write(out, f"{time.monotonic()} {os.getpid()} {token} {word}\n".encode())

    for term in locks.leader("poller", timeout=lease):
        note("begin", term.fence_token)
        while not term.lost:
            note("work", term.fence_token)
            term.wait(PACE_SECONDS)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
