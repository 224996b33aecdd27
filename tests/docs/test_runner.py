"""A sample that is wrong fails, by its page and line, and none is passed over."""

import os
import re
import subprocess
import sys

import pytest

from ..tools import ROOT
from .printed import matches
from .samples import ELSEWHERE, HOME, pages, samples

GOOD = """
# Good

```python
from django_redislock import locks
with locks.lock("invoice:42") as lock:
    print(lock.name)
```

```text
invoice:42
```

<!-- invisible-code-block: python
page.instead["Nobody"] = "Somebody"
-->

> ````{note}
> ```pycon
> >>> async def name():
> ...     async with locks.lock("Nobody") as lock:
> ...         return lock.name
> >>> locks.lock("a", timeout="soon")
> Traceback (most recent call last):
>     ...
> TypeError: timeout must be ...
> ```
> ````

```python
assert await name() == "Somebody"
```

```python
# shop/tasks.py
from celery import shared_task

@shared_task
def add(a, b):
    return a + b
```

```python
from shop import tasks
with page.worker():
    assert tasks.add.delay(1, 2).get(timeout=60) == 3
assert tasks.add.name == "shop.tasks.add"
```

```python
REDISLOCK_TIMEOUT = 7
INSTALLED_APPS = [..., "django_redislock"]
```

```console
$ python manage.py shell -v 0 -c \\
    "from django.conf import settings; print(settings.REDISLOCK_TIMEOUT, 'seconds')"
7 sec...
$ make demo   # not run
$ redis-cli ECHO hello
hello
```
"""

BAD = {
    "python that fails": "```python\nassert 1 == 2\n```",
    "another answer": "```pycon\n>>> 1 + 1\n3\n```",
    "no error": "```pycon\n>>> 1 + 1\nTraceback (most recent call last):\nValueError\n```",
    "a setting that can't be": "```python\nREDISLOCK_TIMEOUT = -1\n```",
    "no such server": '```python\nfrom django.conf import settings\nCACHES = {"default": '
    '{**settings.CACHES["default"], "LOCATION": "redis://127.0.0.1:1/0"}}\n```',
    "hidden": "<!-- invisible-code-block: python\nraise ValueError\n-->",
    "in a list": "1. so\n\n   ```python\n   assert 1 == 2\n   ```",
    "in a directive": "````{note}\n```python\nassert 1 == 2\n```\n````",
    "a directive of code": "```{code-block} python\n:caption: so\n\nassert 1 == 2\n```",
    "a directive that brings in a file": "```{literalinclude} code.py\n```",
    "by tildes": "~~~python\nassert 1 == 2\n~~~",
    "no language": "```\nlocks.lock()\n```",
    "indented": "    locks.lock()",
    "a language that nothing runs": "```ruby\nputs 1\n```",
    "another output": "```console\n$ python -c 'print(1)'\n2\n```",
    "a command that fails": "```console\n$ python -c 'raise SystemExit(3)'\n```",
    "a command that nothing runs": "```console\n$ rm -rf build\n```",
    "no command": "```console\npython\n```",
    "no such target": "```console\n$ make coffee\n```",
    "no such extra": '```console\n$ pip install "django-redislock[coffee]"\n```',
    "another package": "```console\n$ pip install coffee\n```",
    "text that nothing printed": "```text\nhello\n```",
    "rights that there are not": "```text\nACL SETUSER coffee +coffee\n```",
    "a job that fails": "```text\n*/5 * * * *  false\n```",
    "a file that can't be read": "```ini\nno section\n```",
    "yaml": "```yaml\na: [\n```",
    "a query that was not sent": "```sql\nSELECT 1\n```",
    "a template": "```html\n{% coffee %}\n```",
}


ORDERED = (
    """
```python
number = 0
```
"""
    + 4
    * """
```python
number += 1
```
```python
assert number > 0
```
"""
)

LEAVES = """
```python
from django_redislock import locks
assert locks.lock("left").acquire()
```
"""


# One process asks for all that they look at.
pytestmark = [pytest.mark.xdist_group("docs-runner"), pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def told(tmp_path_factory) -> str:
    """What a run of some pages tells, in two processes and at random."""
    folder = tmp_path_factory.mktemp("site")
    pages = {f"bad{number}": f"# Bad\n\n{text}\n" for number, text in enumerate(BAD.values())}
    pages |= {"good": GOOD, "one": ORDERED, "two": ORDERED, "leaves": LEAVES}
    (folder / "docs").mkdir()
    for name, text in pages.items():
        (folder / "docs" / f"{name}.md").write_text(text)
    options = "-n 2 --dist loadgroup -p no:cacheprovider -rA --tb=short"
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options.split(), "tests/docs/test_samples.py"],
        cwd=ROOT,
        env=os.environ | {"TESTS_DOCS": str(folder)},
        capture_output=True,
        text=True,
        timeout=220,
        check=False,
    ).stdout


def outcomes(told: str, page: str) -> list[str]:
    return re.findall(rf"^([A-Z]+) \S+\[docs/{page}\.md:\d+\]", told, re.MULTILINE)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(BAD)), ids=list(BAD))
def test_a_wrong_sample_fails(told, number):
    assert outcomes(told, f"bad{number}") == ["FAILED"], told


def test_a_failure_names_page_and_line(told):
    assert re.search(r"^FAILED \S+\[docs/bad0\.md:3\]", told, re.MULTILINE)
    assert re.search(r"docs/bad0\.md:4: in <module>", told)


def test_what_is_right_passes(told):
    assert outcomes(told, "good") == ["PASSED"] * 9, told


def test_the_samples_of_a_page_keep_their_order(told):
    assert outcomes(told, "one") == outcomes(told, "two") == ["PASSED"] * 9, told


@pytest.mark.slow
def test_a_page_that_leaves_a_lock_fails(told):
    assert outcomes(told, "leaves") == ["FAILED"], told
    assert re.search(r"docs/leaves\.md leaves behind: .*left", told)


def test_every_page_is_looked_at():
    assert {"README.md", "docs/index.md", "docs/reference/locks.md"} <= set(pages())
    for page, test in ELSEWHERE.items():
        assert (HOME / page).exists() == (ROOT / test).exists()
    assert len(samples()) > 40


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("2026-11-21 00:47:14+00:00  held  vm:25360", "2027-01-02 03:04:05+00:00  held  vm:7"),
        ("fence 1795222034886462", "fence 1800000000000000"),
        ("lease 1.2s of 6.0s left", "lease 12s of 8s left"),
        ("a   b\n\nc", "a b\nc"),
        ("███░░ 1.8s", "█░░░░ 0.3s"),
    ],
)
def test_what_varies_is_not_compared(shown, printed):
    assert matches(printed, shown)


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("invoice:42", "invoice:43"),
        ("stuck:7 (mutex)", "stuck:7 (semaphore)"),
        ("1 waits", "2 waits"),
        ("held\ntaken", "taken\nheld"),
        ("left 1.2s", "right 1.2s"),
    ],
)
def test_what_does_not_vary_is_compared(shown, printed):
    assert not matches(printed, shown)
