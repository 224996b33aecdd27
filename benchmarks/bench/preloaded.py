"""What a crew's processes have before they begin, imported once by the one that forks them."""

import django

django.setup()

from django_redislock import locks  # noqa: E402  needs the settings

from . import contenders, turns  # noqa: E402

__all__ = ["contenders", "locks", "turns"]
