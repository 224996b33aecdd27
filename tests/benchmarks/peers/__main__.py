"""`python -m tests.benchmarks.peers [package ...]`: run all cases and print the table."""

import gc
import importlib
import logging
import os
import platform
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path

from django_redislock.testing import EmbeddedServer

APPS = {
    "django-redislock, `while_executing`": ("while_executing_app", "django-redislock"),
    "django-redislock, `until_executed`": ("until_executed_app", "django-redislock"),
    "celery-once": ("celery_once_app", "celery-once"),
    "celery-singleton": ("celery_singleton_app", "celery-singleton"),
    "celery-heimdall": ("celery_heimdall_app", "celery-heimdall"),
}


def main(wanted: list[str]) -> None:
    chosen = {each: APPS[each] for each in APPS if not wanted or APPS[each][0][:-4] in wanted}
    if not chosen:
        sys.exit(f"Choose of: {', '.join(module[:-4] for module, _ in APPS.values())}")
    with EmbeddedServer() as server, tempfile.TemporaryDirectory() as folder:
        os.environ["REDIS_URL"] = server.url
        os.environ["DJANGO_SETTINGS_MODULE"] = "testproject.settings"
        columns = dict(_measure(list(chosen), Path(folder)))
        print(_versions(server.url))
        # A result that goes tells the server so, which must still be there.
        gc.collect()
    print()
    print("\n".join(_table(columns)))


def _measure(names: list[str], folder: Path) -> Iterator[tuple[str, dict[str, str]]]:
    import django

    django.setup()
    logging.disable(logging.WARNING)  # of duplicates, which are wanted here
    modules = [importlib.import_module(f".{APPS[name][0]}", __package__) for name in names]
    with ThreadPoolExecutor(len(names)) as pool:
        logs = [folder / f"{module.__name__}.log" for module in modules]
        yield from zip(names, pool.map(_column, modules, logs), strict=True)


def _column(module, log: Path) -> dict[str, str]:
    from .cases import CASES
    from .run import Run, Worker

    cells = {}
    for name, case in CASES.items():
        with Worker(module, log) as worker:
            run = Run(worker.tasks)
            try:
                cells[name] = case(run)
            finally:
                run.close()
    return cells


def _table(columns: dict[str, dict[str, str]]) -> Iterator[str]:
    yield f"| | {' | '.join(columns)} |"
    yield f"|---{'|---' * len(columns)}|"
    for case in next(iter(columns.values())):
        cells = (column[case].replace("|", "\\|") for column in columns.values())
        yield f"| {case} | {' | '.join(cells)} |"


def _versions(url: str) -> str:
    from redis import Redis

    packages = ["django-redislock", "celery-once", "celery-singleton", "celery-heimdall"]
    packages += ["celery", "kombu", "redis", "Django"]
    with Redis.from_url(url) as client:
        info = client.info("server")
    server = f"server {info.get('valkey_version') or info['redis_version']}"
    found = [f"{name} {version(name)}" for name in packages]
    return ", ".join([*found, server, f"Python {platform.python_version()}"])


if __name__ == "__main__":
    main(sys.argv[1:])
