"""How a lease is extended and released."""

from .. import clock
from ..engine import protocol
from ..engine.lease import Lease
from ..engine.operations import Flow
from ..engine.store import RenewMode
from ..engine.timing import CLEANUP_TIMEOUT_SECONDS


def extend_lease(lease: Lease, seconds: float, *, replace: bool) -> Flow[bool]:
    """Change when a lease ends, and return whether it is still held.

    The end is calculated here, so that a client that repeats the request adds nothing.

    Args:
        lease: The lease.
        seconds: The seconds to add, or from now on with `replace`.
        replace: Whether the lease may become shorter.
    """
    renewer = lease.renewer
    sent_at = clock.now()
    mode: RenewMode
    if replace:
        mode = "set"
        wanted = lease.apply_at_least_for(seconds)
    else:
        mode = "renew"
        wanted = lease.remaining(sent_at) + seconds
    wanted = min(wanted, lease.max_deadline - sent_at)
    if replace:
        request = lease.begin_set(wanted, sent_at)
        renewer.watch(lease)
    ttl: float | None = None
    try:
        ttl = yield from protocol.renew(
            lease.keys,
            lease.token,
            wanted,
            mode,
            reply_timeout=lease.reply_timeout,
            min_replicas=lease.min_replicas,
        )
    finally:
        if replace:
            lease.end_set(request, has_reply=ttl is not None)
    if ttl:
        lease.apply_extension(sent_at, min(ttl, wanted))
        renewer.watch(lease)
    return ttl > 0


def release_lease(lease: Lease, *, unused: bool = False, killed: bool = False) -> Flow[bool]:
    """Release a lease, and return whether it was held. The renewer repeats what fails.

    Args:
        lease: The lease.
        unused: Whether the acquisition failed. Then there is no cooldown.
        killed: Whether the holder is dead. The history records that.
    """
    reply_timeout = lease.reply_timeout
    if unused and reply_timeout is None:
        reply_timeout = CLEANUP_TIMEOUT_SECONDS
    try:
        lease.end()
        released = yield from protocol.release(
            lease.keys,
            lease.token,
            at_least_for=0 if unused else lease.at_least_for,
            fence_token=lease.fence_token,
            killed=killed,
            reply_timeout=reply_timeout,
        )
    except BaseException:
        release_in_background(lease, unused=unused)
        raise
    if lease.may_be_acquired_late:
        release_in_background(lease, unused=unused)
    return released


def release_in_background(lease: Lease, *, unused: bool = False) -> None:
    """End a lease, and let its renewer release it. An unused one has no cooldown."""
    lease.end()
    at_least_for = 0 if unused else lease.at_least_for
    # A request without a reply may begin a full lease as late as now.
    longest = max(lease.deadline - clock.now(), lease.seconds, at_least_for)
    lease.renewer.release_later(lease.keys, lease.token, longest, at_least_for)
