"""A clock for holders that a test moves forward, so that it need not wait for renewals."""

import asyncio

import pytest

from django_redislock import clock
from django_redislock.engine import renewer


class FakeClock:
    """Replaces `django_redislock.clock.now`. It runs at the usual speed, plus what the test adds.

    The server's clock is not moved. If it is moved by half of a lease, the renewal is due, and the
    server still keeps the lock. If it is moved by more than a lease, the holder takes the lock for
    lost, and the server still keeps it.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._real, self._ahead = clock.now, 0.0
        monkeypatch.setattr(clock, "now", self.now)

    def now(self) -> float:
        return self._real() + self._ahead

    def pass_time(self, seconds: float) -> None:
        self._ahead += seconds

    def forward(self, seconds: float) -> None:
        """Move it forward, and have the renewal threads do what is due then."""
        self.pass_time(seconds)
        for book in renewer.thread_renewers():
            book.run_once()

    async def aforward(self, seconds: float) -> None:
        """Move it forward, and have the renewals of the running event loop do what is due."""
        self.pass_time(seconds)
        loop = asyncio.get_running_loop()
        for book in list(renewer._loop_renewers.get(loop, {}).values()):
            await book.run_once()
