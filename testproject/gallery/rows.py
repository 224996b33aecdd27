"""The rows that locks guard, for exhibits that need a database."""

from collections.abc import Iterator
from contextlib import contextmanager

from django.core.management import call_command

from testproject.stage import Stage

from .actors import Actor
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
def clerk_of(stage: Stage) -> Iterator[Actor]:
    """Who has the tables made in the stage's database."""
    with Scene() as scene:
        clerk = scene.cast(Clerk)
        clerk.do("migrate")
        yield clerk
