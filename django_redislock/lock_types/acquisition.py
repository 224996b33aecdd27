"""One acquisition of a lock, from the request to the hold or the cleanup."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import ref

from django.core.exceptions import SynchronousOnlyOperation
from redis.exceptions import RedisError

from .. import clock
from ..backends import Server
from ..engine import protocol, queries, registry
from ..engine.lease import Lease, LeaseState
from ..engine.operations import Flow
from ..engine.outages import is_outage, log_outage, outage_pause
from ..engine.registry import AnyHold, Hold
from ..engine.renewer import Renewer
from ..engine.store import AcquireRequest
from ..engine.timing import FINAL_REPLY_TIMEOUT_SECONDS, REPLY_TIMEOUT_SECONDS
from ..exceptions import LockError
from ..identity import Owner, payload_text
from ..snapshots import LockInfo
from ..tokens import new_stored_token
from . import errors, signal_dispatch
from .lease_flows import release_in_background, release_lease

if TYPE_CHECKING:
    from .base import BaseLock


@dataclass(frozen=True, slots=True)
class AcquireCall:
    """The arguments of one call of `acquire()`, and who calls."""

    owner: Owner

    is_by_owner: bool
    """Whether the owner itself makes the call. It cannot release anything while it waits."""

    deadline: float | None
    """When the caller wants to give up, on the holder's clock. None means never."""

    token: str | None
    """The caller's token; None for a random one."""

    renewer: Callable[[Server, int], Renewer]

    wait_until: float | None
    """When the flow gives up: the `deadline`, or ``-inf`` if a wait would block an event loop."""


class AnyAcquisition:
    """One acquisition, as `acquire()` sees it: its flow, and how to clean up after it."""

    was_queued = False
    """Whether a server has queued the caller, so that it is known to store locks."""

    hold: AnyHold | None

    def __init__(self, lock: "BaseLock", call: AcquireCall) -> None:
        self.lock = lock
        self.call = call

    def flow(self) -> Flow[AnyHold | None]:
        """Acquire the lock, and return the hold, or None if it was not acquired in time."""
        hold = yield from self.acquire()
        if hold is None:
            self._refuse_to_block_the_loop()
            return None
        hold.begin()
        holds = self.lock._holds
        if len(holds) > 1:
            holds.remove_of_dead_owners()
        return hold

    def acquire(self) -> Flow[AnyHold | None]:
        """Acquire the lock, as a part of another lock or for `flow()`."""
        raise NotImplementedError

    def abandon(self) -> None:
        """Leave nothing behind after an error or an interrupt. The renewer releases it."""
        raise NotImplementedError

    def blocker(self) -> Flow[LockInfo | None]:
        """Return a snapshot of the lock that was in the way, or None if Redis does not reply."""
        raise NotImplementedError

    def pause_after(self, error: Exception, failures: int) -> float:
        """Return the seconds until the next attempt. Raise the error if there is none.

        A call without a limit waits only after a server has queued it: see `acquire()`.
        """
        until = self.call.wait_until
        waits = self.was_queued if until is None else clock.now() < until
        if not (waits and is_outage(error)):
            raise error
        if failures == 1:
            log_outage(self.lock.name, error)
        left = math.inf if until is None else until - clock.now()
        return max(0, min(outage_pause(failures), left))

    def _refuse_to_block_the_loop(self) -> None:
        if self.call.wait_until != self.call.deadline:
            raise SynchronousOnlyOperation(
                f"You cannot wait for lock {self.lock.name!r} in a thread with a running event "
                "loop, because that blocks the loop. Use 'async with' or "
                "'await lock.aacquire()', or call this code with sync_to_async()."
            )


class Acquisition(AnyAcquisition):
    """One acquisition of an ordinary lock."""

    renewal_confirms_grant = True
    """Whether a grant that a renewal confirms later counts as acquired."""

    def __init__(
        self,
        lock: "BaseLock",
        call: AcquireCall,
        server: Server,
        *,
        stored_token: str = "",
        is_part: bool = False,
    ) -> None:
        super().__init__(lock, call)
        self.server = server
        self.is_part = is_part
        self.lease: Lease | None = None
        self.hold: Hold | None = None
        self._stored_token = stored_token or lock.stored_token

    def acquire(self) -> Flow[Hold | None]:
        own = yield from self.own_leases()
        for lease in own:
            if self.lock._can_reenter(lease):
                return self.enter(lease, is_first=False)
        if own and self.waits_for_itself(own):
            raise errors.already_held_error(self.lock, self.lock.name, self.call.owner, own)
        return (yield from self.request(self.call.wait_until))

    def enter(self, lease: Lease, *, is_first: bool) -> Hold:
        """Add a hold with a new lease, or with the lease of an earlier hold."""
        hold = Hold(
            self.call.owner,
            self.server,
            registry.reference_to(self.lock),
            lease,
            is_first=is_first,
            is_part=self.is_part,
        )
        self.hold = hold  # before it is added, so that `abandon()` finds it after an interrupt
        registry.add(hold)
        self.lock._holds.append(hold)
        return hold

    # A new lease

    def request(self, until: float | None) -> Flow[Hold | None]:
        """Acquire a new lease, and leave nothing behind if that fails.

        Args:
            until: When to give up, as for `AcquireCall.wait_until`.
        """
        lease = self.lease = self.new_lease()
        request = self.new_request(lease)
        try:
            acquired = yield from protocol.acquire(request, until)
            if acquired and not acquired.is_confirmed and not lease.renewer.ensure_running():
                # The grant lasts two seconds, and no renewal would confirm it. A second request
                # confirms it and returns the full lease.
                request.renewal_confirms_grant = False
                acquired = yield from protocol.acquire(request, until)
            if acquired is None:
                if request.may_arrive_late:
                    release_in_background(lease, unused=True)
                else:
                    lease.end()
                return None
            lease.begin(
                acquired.fence_token, acquired.deadline, is_confirmed=acquired.is_confirmed
            )
            lease.may_be_acquired_late = request.may_arrive_late
            self.lock.took_over = acquired.took_over
            hold = self.enter(lease, is_first=True)
            lease.renewer.watch(lease)
        except (GeneratorExit, LockError):
            self.forget()
            raise
        except BaseException as error:
            self.forget()
            released = False
            try:
                released = yield from protocol.cleanup_failed_acquire(request, error)
            finally:  # a second interrupt or cancellation may end that, too
                if not released:
                    release_in_background(lease, unused=True)
            raise
        finally:
            self.was_queued |= request.was_queued
        if lease.state is LeaseState.ENDED:  # the caller was interrupted in another thread
            self.forget()
            yield from release_lease(lease, unused=True)
            return None
        return hold

    def abandon(self) -> None:
        if self.hold:
            self.lock._abandon(self.hold, unused=True)
        if self.lease and self.lease.state is not LeaseState.ENDED:
            release_in_background(self.lease, unused=True)

    def forget(self) -> None:
        """End the lease, and remove the hold, without a request.

        If the request for the lease is under way in another thread, that thread releases it.
        """
        if self.lease:
            self.lease.end()
        if self.hold:
            self.lock._holds.remove(self.hold)
            registry.remove(self.hold)

    def new_lease(self) -> Lease:
        lock = self.lock
        call = self.call
        return Lease(
            self.server,
            self.server.keys.of(lock.name),
            self._stored_token or new_stored_token(call.token),
            seconds=lock.timeout,
            owner=ref(call.owner),
            kind=lock.kind,
            weight=lock.weight,
            is_renewed=lock.auto_renewal,
            renewer=call.renewer(self.server, lock.min_replicas),
            at_least_for=lock.at_least_for,
            max_hold=math.inf if lock.max_hold is None else lock.max_hold,
            min_replicas=lock.min_replicas,
            reply_timeout=self.lock.reply_timeout,
            on_lost=signal_dispatch.report_loss,
        )

    def new_request(self, lease: Lease) -> AcquireRequest:
        lock = self.lock
        # An `at_least_for` that is longer than the timeout is the first lease. Renewals do not
        # extend it, so Redis does not show them before it has passed.
        is_late = lock.auto_renewal and lock.at_least_for > lock.timeout
        is_renewed_at_once = lock.auto_renewal and not lock.at_least_for
        return AcquireRequest(
            keys=lease.keys,
            token=lease.token,
            kind=lock.kind,
            capacity=lock.capacity,
            weight=lock.weight,
            lease=max(lock.timeout, lock.at_least_for),
            payload=payload_text(
                lock.metadata,
                renewed="later" if is_late else lock.auto_renewal,
                on_conflict=lock.on_conflict,
                task=lock.task,
                owner=self.call.owner,
            ),
            renewal_confirms_grant=self.renewal_confirms_grant and is_renewed_at_once,
            reply_timeout=self.lock.reply_timeout,
            predecessor=lock.predecessor,
            min_replicas=lock.min_replicas,
            rides_outages=lock.rides_outages,
            was_queued=self.was_queued,
        )

    def blocker(self) -> Flow[LockInfo | None]:
        try:
            info = yield from queries.get(
                self.server.keys, self.lock.name, FINAL_REPLY_TIMEOUT_SECONDS
            )
        except RedisError:
            return None
        return info if info and info.holders else None

    # What the caller holds already

    def own_leases(self) -> Flow[list[Lease]]:
        """Return the leases by which the caller holds the lock.

        The caller can hold it through another client or another cache alias of the same server. If
        that would decide what happens next, the server is asked for the tokens of its holders.
        """
        own, elsewhere = registry.leases_by_client(self.call.owner, self.server, self.lock.name)
        if not elsewhere or any(map(self.lock._can_reenter, own)):
            return own
        elsewhere = self._possible(elsewhere)
        matters = any(map(self.lock._can_reenter, elsewhere))
        if not (matters or self.waits_for_itself([*own, *elsewhere])):
            return own
        limit = self.lock.reply_timeout or REPLY_TIMEOUT_SECONDS
        info = yield from queries.get(self.server.keys, self.lock.name, limit)
        tokens = {holding.stored_token for holding in info.holders} if info else set()
        return own + [lease for lease in elsewhere if lease.token in tokens]

    def _possible(self, elsewhere: list[Lease]) -> list[Lease]:
        """Return the leases through other clients that may be leases on this server."""
        return elsewhere

    def waits_for_itself(self, own: Sequence[Lease]) -> bool:
        """Return whether the caller would wait for a lease that only it can release."""
        lock = self.lock
        if self.call.deadline is not None or not self.call.is_by_owner:
            return False
        # A lease that is not renewed expires while the caller waits.
        weight = sum(
            lease.weight
            for lease in own
            if lease.kind == lock.kind and lease.is_renewed and not lease.lost
        )
        return weight > 0 and weight + lock.weight > lock.capacity
