"""Many processes and one quorum, around what only one may do at a time.

    DJANGO_SETTINGS_MODULE=tests.settings python -m tests.integration.quorum_hammer URL URL URL

Each reads a number from a file, adds one and writes it back, and appends its fencing token to
another file. Prints "begun", and at the end, as JSON, the number, how often each process added
one, where the tokens did not grow from hold to hold, how often too few servers answered in time
(a busy machine is late, too), and what else went wrong.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import django
from django.test import override_settings

CORE = "django.core.cache.backends.redis.RedisCache"


def main() -> int:
    options = _options()
    django.setup()
    caches = {
        f"q{number}": {"BACKEND": CORE, "LOCATION": url, "KEY_PREFIX": "own"}
        for number, url in enumerate(options.urls)
    }
    with override_settings(CACHES=caches), tempfile.TemporaryDirectory() as folder:
        told = _hammer(Path(folder), options, list(caches))
    print(json.dumps(told))
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("urls", nargs="+")
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--timeout", type=float, default=2)
    return parser.parse_args()


def _hammer(folder: Path, options: argparse.Namespace, using: list[str]) -> dict[str, object]:
    counter, tokens = folder / "counter", folder / "tokens"
    counter.write_text("0")
    tokens.touch()
    results = [_forked(folder, options, using) for _ in range(options.processes)]
    print("begun", flush=True)
    told = [json.loads(os.fdopen(reading).read()) for reading in results]
    for _ in results:
        os.wait()
    given = [int(line) for line in tokens.read_text().split()]
    return {
        "found": int(counter.read_text()),
        "added": [process["added"] for process in told],
        "tokens": len(given),
        "not_grown": [pair for pair in pairwise(given) if pair[0] >= pair[1]],
        "refused": sum(process["refused"] for process in told),
        "troubles": [trouble for process in told for trouble in process["troubles"]],
    }


def _forked(folder: Path, options: argparse.Namespace, using: list[str]) -> int:
    reading, writing = os.pipe()
    if os.fork():
        os.close(writing)
        return reading
    with os.fdopen(writing, "w") as pipe:
        pipe.write(json.dumps(_work(folder, options, using)))
    os._exit(0)


def _work(folder: Path, options: argparse.Namespace, using: list[str]) -> dict[str, object]:
    from redis.exceptions import ConnectionError

    from django_redislock import locks

    lock = locks.quorum("hammer", using, timeout=options.timeout)
    counter, tokens = folder / "counter", folder / "tokens"
    until = time.monotonic() + options.seconds
    added = refused = 0
    troubles: list[str] = []

    def add() -> None:
        nonlocal added
        with lock:
            counter.write_text(str(int(counter.read_text()) + 1))
            added += 1
            with tokens.open("a") as file:
                file.write(f"{lock.fence_token}\n")

    while time.monotonic() < until and not troubles:
        try:
            add()
        except ConnectionError:
            refused += 1
        except BaseException as error:
            troubles.append(f"{type(error)}: {error}")
    return {"added": added, "refused": refused, "troubles": troubles}


if __name__ == "__main__":
    sys.exit(main())
