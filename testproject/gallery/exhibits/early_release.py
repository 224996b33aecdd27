"""The lock is released before the transaction around it commits."""

from contextlib import AbstractContextManager
from typing import Any

from django.db import OperationalError, transaction
from redis.exceptions import LockError

from django_redislock import locks
from testproject.gallery.actor_process import reach
from testproject.gallery.actors import Actor
from testproject.gallery.exhibit import Exhibit, Outcome
from testproject.gallery.lock_pairs import TaughtLock
from testproject.gallery.models import Invoice
from testproject.gallery.rows import clerk_of
from testproject.gallery.trial import ActorFactory, Trial, require

RESPONSE = "the response is made"


class LockInside(TaughtLock):
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
        """Charge at once, because the bank is not part of the transaction."""
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


def run_trials(clerk: Actor, lock: ActorFactory, trials: int) -> list[Outcome]:
    """Run the trials one after another, because SQLite has one writer at a time."""
    return [_trial(clerk, lock) for _ in range(trials)]


def _trial(clerk: Actor, lock: ActorFactory) -> Outcome:
    invoice = clerk.do("new")
    with Trial(clerk.actor_server) as trial:
        first, second = trial.actor(lock), trial.actor(lock)
        first.begin("try_to_pay", invoice, halt_before={RESPONSE})
        require(first.halts(), "the invoice is paid, and the transaction is not committed")
        second.do("try_to_pay", invoice)
        first.resume()
        first.end()
        second.do("try_to_pay", invoice)
        require(clerk.do("state", invoice) == "paid", "the transaction is committed")
        return Outcome(failed=second.do("charged") > 1)


EXHIBIT = Exhibit(
    name="early-release",
    title="A lock inside a transaction",
    algorithm="The lock is released before the transaction commits.",
    failure="the next holder did not see that the invoice was paid: charged twice",
    taught=LockInside,
    ours=OurLockInside,
    run_trials=run_trials,
    setting=clerk_of,
)
