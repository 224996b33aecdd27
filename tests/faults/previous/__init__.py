"""The package as it was in the release before this one: `django_redislock.zip`, of commit 9d94710,
without what only its pages need. Make it again with each release, from the release before it:

    git archive --format=zip -9 -o tests/faults/previous/django_redislock.zip COMMIT \\
        django_redislock ':(exclude)django_redislock/admin' ':(exclude)django_redislock/locale' \\
        ':(exclude)django_redislock/static' ':(exclude)django_redislock/templates'
"""

import os
from pathlib import Path

from tests.tools import ROOT

PACKAGE = Path(__file__).with_name("django_redislock.zip")

ENVIRONMENT = {
    "PYTHONPATH": os.pathsep.join([str(PACKAGE), str(ROOT), os.environ.get("PYTHONPATH", "")]),
    "PYTHONSAFEPATH": "1",
}
"""Of a Python that imports it, whatever stands in its working directory."""
