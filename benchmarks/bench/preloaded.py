"""Imports of the processes of a crew, done once by the process that forks them."""

import django

django.setup()

from django_redislock import locks  # noqa: E402  needs the settings

from . import contenders, turns  # noqa: E402

__all__ = ["contenders", "locks", "turns"]
