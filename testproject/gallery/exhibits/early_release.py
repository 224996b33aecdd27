"""The lock is released, and then the transaction around it is committed."""

from contextlib import AbstractContextManager
from typing import Any

from django.db import OperationalError, transaction
from redis.exceptions import LockError

from django_redislock import locks
from testproject.gallery.actors import Actor
from testproject.gallery.exhibit import Exhibit, Outcome
from testproject.gallery.models import Invoice
from testproject.gallery.parts import Taught
from testproject.gallery.playing import reach
from testproject.gallery.rows import clerk_of
from testproject.gallery.scene import Part, Scene, hold

RESPONSE = "the response is made"


class LockInside(Taught):
    def pay(self, pk: int) -> None:
        with transaction.atomic():  # as ATOMIC_REQUESTS does for each view
            with self.lock():
                invoice = Invoice.objects.get(pk=pk)
                if invoice.state == "open":
                    self.charge()
                    invoice.state = "paid"
                    invoice.save()
            reach(RESPONSE)

    def lock(self) -> AbstractContextManager[Any]:
        lock: AbstractContextManager[Any] = self.client.lock(
            self.name, timeout=self.lease, blocking=False
        )
        return lock

    def charge(self) -> None:
        """The bank knows nothing of our transaction."""
        self.client.incr(f"{self.name}:charged")

    def try_to_pay(self, pk: int) -> None:
        try:
            self.pay(pk)
        except (LockError, OperationalError):  # SQLite refuses the second writer, after its charge
            return

    def charged(self) -> int:
        return int(self.client.get(f"{self.name}:charged"))


class OurLockInside(LockInside):
    def lock(self) -> AbstractContextManager[Any]:
        return locks.lock(self.name, timeout=self.lease, blocking=False, release_on_commit=True)


def plays(clerk: Actor, lock: Part, trials: int) -> list[Outcome]:
    """One after the other: SQLite has one writer at a time."""
    return [_trial(clerk, lock) for _ in range(trials)]


def _trial(clerk: Actor, lock: Part) -> Outcome:
    invoice = clerk.do("new")
    with Scene(clerk.home) as scene:
        first, second = scene.actor(lock), scene.actor(lock)
        first.begin("try_to_pay", invoice, halt_before={RESPONSE})
        hold(first.halts(), "it is paid, and not committed")
        second.do("try_to_pay", invoice)
        first.go_on()
        first.end()
        second.do("try_to_pay", invoice)
        hold(clerk.do("state", invoice) == "paid", "it is committed")
        return Outcome(failed=second.do("charged") > 1)


EXHIBIT = Exhibit(
    name="early-release",
    title="A lock inside a transaction",
    algorithm="The lock is released before the transaction commits.",
    failure="the next holder did not see that the invoice was paid: charged twice",
    taught=LockInside,
    ours=OurLockInside,
    plays=plays,
    setting=clerk_of,
)
