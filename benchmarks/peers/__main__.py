"""`python -m benchmarks.peers [package ...]`: run all cases and print the tables."""

import argparse
import gc
import logging
import platform
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from importlib.metadata import version
from pathlib import Path

from tests.faults.table import markdown, write
from tests.servers import Node

from ..bench.places import set_up

BEGIN = "<!-- peers: written by `make peers` -->"
END = "<!-- peers: end -->"

Columns = Mapping[str, Mapping[str, str]]  # the cells, by column and row

TASKS = {
    "while_executing": "django-redislock, `while_executing`",
    "until_executed": "django-redislock, `until_executed`",
    "celery_once": "celery-once",
    "celery_singleton": "celery-singleton",
    "celery_heimdall": "celery-heimdall",
}

LOCKS = ("django_redislock", "cache_lock", "redis_py", "python_redis_lock", "pottery")

PACKAGES = (
    *("django-redislock", "redis", "django-redis", "python-redis-lock", "pottery"),
    *("celery-once", "celery-singleton", "celery-heimdall", "celery", "kombu", "Django"),
)


def main() -> None:
    options = _options()
    wanted = options.packages or [*LOCKS, *TASKS]
    with Node() as server, tempfile.TemporaryDirectory() as folder:
        set_up(server.url)
        logging.disable(logging.WARNING)  # of duplicates, which are intended here
        found = [_versions(server.url)]
        print(found[0], flush=True)
        locks = [each for each in LOCKS if each in wanted]
        if locks:
            found.append(table(_of_locks(locks, options.case), "Locks"))
            print(f"\n{found[-1]}", flush=True)
        tasks = [each for each in TASKS if each in wanted]
        if tasks:
            found.append(table(dict(_of_tasks(tasks, Path(folder))), "Celery tasks"))
            print(f"\n{found[-1]}")
        # Collect results while the server runs, because their deletion sends it a command.
        gc.collect()
    if options.write:
        write(options.write, "\n\n".join(found), BEGIN, END)


def table(columns: Columns, corner: str) -> str:
    rows = next(iter(columns.values()))
    lines = [
        [corner, *columns],
        *([row, *(each[row] for each in columns.values())] for row in rows),
    ]
    head, *rest = ([text.replace("|", "¦") for text in line] for line in lines)
    return markdown(head, ["---"] * len(head), *rest)


def _of_locks(names: list[str], part: str) -> Columns:
    from .locks.cases import CASES
    from .locks.place import Place
    from .locks.user import MAKES

    columns: dict[str, dict[str, str]] = {MAKES[name].label: {} for name in names}
    for title, case in CASES.items():
        if part not in title:
            continue
        # Begin when all processes have started, so that a start does not slow down a case.
        with ThreadPoolExecutor(len(names)) as pool, ExitStack() as stack:
            places = [stack.enter_context(Place(name, case)) for name in names]
            for place, cell in zip(places, pool.map(case.run, places), strict=True):
                columns[place.make.label][title] = cell
                print(f"{title}: {place.make.label}: {cell}", flush=True)
    return columns


def _of_tasks(names: list[str], folder: Path) -> Iterator[tuple[str, dict[str, str]]]:
    from .run import CASES, Run, Worker

    def column(name: str) -> dict[str, str]:
        cells = {}
        for title, case in CASES.items():
            with Worker(name, folder) as worker, closing(Run(worker.tasks)) as run:
                cells[title] = case(run)
        return cells

    with ThreadPoolExecutor(len(names)) as pool:
        yield from zip((TASKS[name] for name in names), pool.map(column, names), strict=True)


def _versions(url: str) -> str:
    from redis import Redis

    with Redis.from_url(url) as client:
        info = client.info("server")
    server = f"server {info.get('valkey_version') or info['redis_version']}"
    found = [f"{name} {version(name)}" for name in PACKAGES]
    return ", ".join([*found, server, f"Python {platform.python_version()}"])


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers")
    parser.add_argument("packages", nargs="*", choices=[[], *LOCKS, *TASKS], help="default: all")
    parser.add_argument("--case", default="", help="part of the title of a lock case")
    parser.add_argument("--write", type=Path, help="write the tables into this page")
    options = parser.parse_args()
    if options.write and (options.packages or options.case):
        parser.error("a page gets all of it")
    return options


if __name__ == "__main__":
    main()
