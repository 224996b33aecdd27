"""What an actor needs, imported once for all of them. It connects to nothing."""

import django

django.setup()

from . import exhibits  # noqa: E402, F401  the parts
