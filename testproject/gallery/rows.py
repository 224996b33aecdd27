"""Rows that locks protect, for exhibits that need a database."""

from collections.abc import Iterator
from contextlib import contextmanager

from django.core.management import call_command

from .actors import Actor, ActorServer
from .models import Invoice
from .trial import Trial


class Clerk:
    """Creates and reads invoices."""

    def migrate(self) -> None:
        call_command("migrate", "gallery", verbosity=0)

    def new(self) -> int:
        return int(Invoice.objects.create().pk)

    def state(self, pk: int) -> str:
        return Invoice.objects.get(pk=pk).state


@contextmanager
def clerk_of(actor_server: ActorServer) -> Iterator[Actor]:
    """Yield an actor that has created the tables."""
    with Trial(actor_server) as trial:
        clerk = trial.start(Clerk)
        clerk.do("migrate")
        yield clerk
