"""What an actor needs, imported once for all of them."""

import django

django.setup()

from django.conf import settings  # noqa: E402
from redis import Redis  # noqa: E402

from . import exhibits  # noqa: E402, F401  the parts

# What redis-py imports and looks up for its first connection takes as long as all the rest.
with Redis.from_url(settings.REDIS_URL) as client:
    client.ping()
