"""The times that depend on each other, in seconds.

A waiter sends heartbeats. Without one for `WAITER_TTL_SECONDS` it counts as dead. A grant lasts
for `GRANT_TTL_SECONDS`. Until then, its waiter or the renewer must confirm it.
"""

HEARTBEAT_SECONDS = 0.5
"""Between two heartbeats of an inbox."""

WAITER_TTL_SECONDS = 1.75
"""Waiters whose inbox had no heartbeat for this time are skipped."""

GRANT_TTL_SECONDS = 2.0
"""The lease of a grant until it is confirmed. It is longer than `WAITER_TTL_SECONDS`: when a grant
to a dead waiter expires, all waiters that died at the same time are skipped, too."""

CONFIRM_DELAY_SECONDS = 0.5
"""The renewer confirms a grant after this time. A lock that is released earlier needs no
renewal."""

GRANT_POLL_SECONDS = 0.4
"""A renewer looks for unconfirmed grants this often. It is less than `CONFIRM_DELAY_SECONDS`. To
wake it for each grant would cost more than the handover itself."""

REPLY_TIMEOUT_SECONDS = 5.0
"""After this time without a reply, a connection counts as dead."""

FINAL_REPLY_TIMEOUT_SECONDS = 0.5
"""How long the reply to the last request of a wait may take."""

CLEANUP_TIMEOUT_SECONDS = 1.0
"""How long the reply to an urgent call may take after its task was cancelled, and to the release
that follows an acquisition that failed."""

OUTAGE_PAUSE_SECONDS = 0.05, 0.5
"""The shortest and the longest pause between two requests while the server is away. It doubles
with each failure, up to `HEARTBEAT_SECONDS`: after a short outage, waiters must be heard of again
within `WAITER_TTL_SECONDS`, or they lose their places."""

REPLICA_WAIT_SECONDS = 1.0
"""The wanted number of replicas must confirm a write within this time."""

MIN_REPLY_SECONDS = 0.25
"""A reply may take this long, however long it took to get a connection."""

CONNECT_TIMEOUT_SECONDS = 5.0
"""How long an event loop tries to connect. Redis may accept a connection and then not reply."""

FREE_CONNECTION_POLL_SECONDS = 0.05
"""A thread that waits for a free connection looks for one this often, in case it was not woken."""

POLL_INTERVAL_SECONDS = 0.005
"""Between two attempts to get what another thread or server is about to release."""

REPLICA_SHARE_OF_LIMIT = 0.8
"""The server may wait for its replicas for this part of the time that a reply may take."""

UNANSWERED_REQUEST_SECONDS = 60.0
"""A server may still execute a request without a reply for this time."""
