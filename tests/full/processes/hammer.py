"""Many processes with many threads and one lock, around what only one may do at a time.

    DJANGO_SETTINGS_MODULE=tests.settings python -m tests.full.processes.hammer --seconds 20

Each reads a number from a file, adds one and writes it back. It prints, as JSON, the number
in the file, how often each process added one, and the longest wait for the lock.
"""

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from pathlib import Path

import django


def main() -> int:
    options = _options()
    django.setup()
    with tempfile.TemporaryDirectory() as folder:
        counter = Path(folder, "counter")
        counter.write_text("0")
        results = [_forked(counter, options) for _ in range(options.processes)]
        told = [json.loads(os.fdopen(reading).read()) for reading in results]
        for _ in results:
            os.wait()
        found = int(counter.read_text())
    added = [process["added"] for process in told]
    longest = max(process["longest"] for process in told)
    troubles = [trouble for process in told for trouble in process["troubles"]]
    print(json.dumps({"found": found, "added": added, "longest": longest, "troubles": troubles}))
    return found != sum(added) or bool(troubles)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--timeout", type=float, default=30)
    parser.add_argument("--using", default="default")
    return parser.parse_args()


def _forked(counter: Path, options: argparse.Namespace) -> int:
    reading, writing = os.pipe()
    if os.fork():
        os.close(writing)
        return reading
    try:
        answer = json.dumps(_work(counter, options))
    except BaseException as error:
        answer = json.dumps({"added": 0, "longest": 0, "troubles": [repr(error)]})
    with os.fdopen(writing, "w") as pipe:
        pipe.write(answer)
    os._exit(0)


def _work(counter: Path, options: argparse.Namespace) -> dict[str, object]:
    from django_redislock import locks

    lock = locks.using(options.using).lock("hammer", timeout=options.timeout)
    until = time.monotonic() + options.seconds
    waits: list[float] = []
    troubles: list[str] = []

    def add() -> None:
        asked = time.monotonic()
        with lock:
            waits.append(time.monotonic() - asked)
            counter.write_text(str(int(counter.read_text()) + 1))

    def hammer() -> None:
        try:
            while time.monotonic() < until:
                add()
        except BaseException as error:
            troubles.append(repr(error))

    threads = [threading.Thread(target=hammer) for _ in range(options.threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"added": len(waits), "longest": max(waits, default=0), "troubles": troubles}


if __name__ == "__main__":
    sys.exit(main())
