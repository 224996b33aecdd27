"""(h) What the package adds to the start of a process that has Django, in processor time: what
others do on the machine takes more of the time by the clock than all that is imported here. Of
some starts the one that was disturbed least counts."""

import compileall
import subprocess
import sys
from functools import partial

from tests.tools import ROOT

from ..figure import Bench, Figure, Line, quartiles
from ..rounds import interleaved

START = """
import sys, time
import django
from django.conf import settings
apps = ["django.contrib.contenttypes", "django.contrib.auth", *sys.argv[1:]]
settings.configure(
    INSTALLED_APPS=apps,
    CACHES={{"default": {{
        "BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": "redis://127.0.0.1"
    }}}},
)
begun = time.process_time()
{imports}
django.setup()
print(time.process_time() - begun, *(name for name in ("celery", "redis") if name in sys.modules))
"""

WITHOUT = START.format(imports="")
WITH = START.format(imports="import django_redislock")


STARTS = 3


def importing(bench: Bench) -> Figure:
    compileall.compile_dir(ROOT / "django_redislock", quiet=1)  # as pip does with all others
    found = interleaved(
        {"without": partial(_least, WITHOUT), "with": partial(_least, WITH, "django_redislock")},
        bench.rounds(15),
        bench.random,
    )
    pairs = zip(found["with"], found["without"], strict=True)
    added = [(ours - bare) * 1000 for (ours, _), (bare, _) in pairs]
    brought = {name for _, names in found["with"] for name in names}
    milliseconds = quartiles([bare * 1000 for bare, _ in found["without"]])[1]
    return Figure(
        "Start of a process",
        (
            Line.of("added to the start of Django", added, "at most", 20, " ms"),
            *(
                Line.of(f"imports {name}", [float(name in brought)], "exactly", 0)
                for name in ("celery", "redis")
            ),
        ),
        (),
        (f"Django's own start, with two of its apps: {milliseconds:.0f} ms.",),
    )


def _least(code: str, *apps: str) -> tuple[float, list[str]]:
    return min(_start(code, *apps) for _ in range(STARTS))


def _start(code: str, *apps: str) -> tuple[float, list[str]]:
    """Seconds, and what of Celery and Redis came with it."""
    done = subprocess.run(
        [sys.executable, "-c", code, *apps], cwd=ROOT, capture_output=True, text=True, check=True
    )
    seconds, *names = done.stdout.split()
    return float(seconds), names
