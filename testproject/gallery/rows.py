"""The rows that locks guard, for exhibits that need a database."""

from collections.abc import Iterator
from contextlib import contextmanager

from django.core.management import call_command

from .actors import Actor, Home
from .models import Invoice
from .scene import Scene


class Clerk:
    """Makes invoices, and looks at them."""

    def migrate(self) -> None:
        call_command("migrate", "gallery", verbosity=0)

    def new(self) -> int:
        return int(Invoice.objects.create().pk)

    def state(self, pk: int) -> str:
        return Invoice.objects.get(pk=pk).state


@contextmanager
def clerk_of(home: Home) -> Iterator[Actor]:
    """Who has the tables made."""
    with Scene(home) as scene:
        clerk = scene.cast(Clerk)
        clerk.do("migrate")
        yield clerk
