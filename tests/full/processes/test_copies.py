"""Lock objects as arguments of other processes."""

import os
import subprocess
import sys

from tests.tools import ROOT

PROGRAM = """
import asyncio, multiprocessing, sys
from concurrent.futures import ProcessPoolExecutor
import django

django.setup()
from django_redislock import LockNotAcquired, locks

@locks.lock("decorated:{number}", timeout=30)
def decorated(number):
    return locks.get(f"decorated:{number}").holder.pid

@locks.semaphore("async:{number}", 2)
async def adecorated(number):
    return (await locks.aget(f"async:{number}")).holder.pid

@locks.lock_many(["many", "many:{number}"])
def many(number):
    return locks.get("many").holder.pid

def try_it(lock):
    try:
        with lock:
            return "acquired"
    except LockNotAcquired:
        return "refused"

def arun(function, *arguments):
    return asyncio.run(function(*arguments))

if __name__ == "__main__":
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        lock = locks.lock("a", blocking=False)
        print(pool.submit(try_it, lock).result())
        with lock:
            print(pool.submit(try_it, locks.lock("a", blocking=False)).result())
        [pid] = pool._processes
        same = [
            pool.submit(decorated, 1).result(),
            pool.submit(arun, adecorated, 1).result(),
            pool.submit(many, 1).result(),
        ]
        print("in the child", same == [pid] * 3)
"""


def test_a_lock_is_an_argument_of_another_process(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, program],
        env=os.environ | {"DJANGO_SETTINGS_MODULE": "tests.settings", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["acquired", "refused", "in the child True"]
