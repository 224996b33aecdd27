"""A process that stands for leader. It appends what it does to a file, with the time.

python -m tests.full.leaders.standing FILE LEASE sync|async
"""

import asyncio
import os
import sys
import time

import django

PACE_SECONDS = 0.02


def main(file: str, lease: float, mode: str) -> None:
    django.setup()
    from django_redislock import locks

    out = os.open(file, os.O_WRONLY | os.O_APPEND)

    def note(word: str, token: int) -> None:
        # One write, because several processes append to the file.
        os.write(out, f"{time.monotonic()} {os.getpid()} {token} {word}\n".encode())

    def lead() -> None:
        for term in locks.leader("poller", timeout=lease):
            note("begin", term.fence_token)
            while not term.lost:
                note("work", term.fence_token)
                term.wait(PACE_SECONDS)

    async def alead() -> None:
        async for term in locks.aleader("poller", timeout=lease):
            note("begin", term.fence_token)
            while not term.lost:
                note("work", term.fence_token)
                await term.wait(PACE_SECONDS)

    if mode == "sync":
        lead()
    else:
        asyncio.run(alead())


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), sys.argv[3])
