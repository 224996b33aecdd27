"""One file for each exhibit: a common algorithm, and the situation that breaks it."""

from . import (
    dead_waiters,
    early_release,
    fixed_lease,
    get_then_del,
    getset,
    ignore_in_chord,
    plain_del,
    polling,
    redlock,
    setnx_then_expire,
)

ALL = (
    setnx_then_expire.EXHIBIT,
    plain_del.EXHIBIT,
    get_then_del.EXHIBIT,
    getset.EXHIBIT,
    fixed_lease.EXHIBIT,
    polling.EXHIBIT,
    dead_waiters.EXHIBIT,
    redlock.EXHIBIT,
    early_release.EXHIBIT,
    ignore_in_chord.EXHIBIT,
)
