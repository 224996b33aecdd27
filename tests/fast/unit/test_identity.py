"""The id of a process."""

import subprocess
import sys

CODE = """
import os
from django_redislock.identity import child_id, process_id

def of_child(function):
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        os.write(write, function().encode())
        os._exit(0)
    os.waitpid(pid, 0)
    return pid, os.read(read, 200).decode()

def of_own_child():
    return of_child(process_id)[1]

own = process_id()
pid, child = of_child(process_id)
assert child == child_id(own, pid)
assert process_id() == own
grandchild = of_child(of_own_child)[1]
assert len({own, child, grandchild}) == 3
print(own)
"""


def test_each_process_has_an_id_of_its_own_that_its_parent_knows() -> None:
    run = [sys.executable, "-c", CODE]
    ids = {subprocess.run(run, check=True, capture_output=True).stdout for _ in range(2)}
    assert len(ids) == 2
    assert all(len(each.strip()) == 16 for each in ids)
