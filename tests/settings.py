"""The test project's settings, on the server and the database file that `tests.plugin` names."""

from testproject.settings import *  # noqa: F403  they are all wanted
from testproject.settings import DATABASES

# A file and not memory: Celery's workers and other processes read and write it too.
DATABASES["default"]["TEST"] = {"NAME": DATABASES["default"]["NAME"]}

PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
