"""The times and limits of the engine, each with its reason. Times are in seconds.

A waiter sends heartbeats. Without one for `WAITER_TTL_SECONDS` it counts as dead. A grant lasts
for `GRANT_TTL_SECONDS`. Until then, its waiter or the renewer must confirm it.
"""

# Waiting

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

READER_IDLE_SECONDS = 2.0
"""The task that reads an inbox ends after this time without a waiter."""

READER_RETRY_SECONDS = 0.05
"""Between an error of the task that reads an inbox and its next attempt."""

STUCK_READER_SECONDS = 10.0
"""A thread that has not ended a read of an inbox after this time was interrupted, so another one
reads. No read takes longer than a heartbeat and a reply."""

POLL_INTERVAL_SECONDS = 0.005
"""Between two attempts to get what another thread or server is about to release."""

MAX_WAITERS_PER_HEARTBEAT = 1000
"""A heartbeat looks for that many waiters in their queues, and the next one for others."""

MAX_MESSAGE_BYTES = 100
"""The length of a message in an inbox that is read. A script sends a shorter one. To parse a very
long one would stop the process."""

# Requests

REPLY_TIMEOUT_SECONDS = 5.0
"""After this time without a reply, a connection counts as dead."""

FINAL_REPLY_TIMEOUT_SECONDS = 0.5
"""How long the reply to the last request of a wait may take."""

CLEANUP_TIMEOUT_SECONDS = 1.0
"""How long the reply to an urgent call may take after its task was cancelled, and to the release
that follows an acquisition that failed."""

MIN_REPLY_SECONDS = 0.25
"""A reply may take this long, however long it took to get a connection."""

CONNECT_TIMEOUT_SECONDS = 5.0
"""How long an event loop tries to connect. Redis may accept a connection and then not reply."""

CLOSE_TIMEOUT_SECONDS = 0.5
"""How long an event loop waits until a connection is closed, at most."""

UNANSWERED_REQUEST_SECONDS = 60.0
"""A server may still execute a request without a reply for this time."""

OUTAGE_PAUSE_SECONDS = 0.05, 0.5
"""The shortest and the longest pause between two requests while the server is away. It doubles
with each failure, up to `HEARTBEAT_SECONDS`: after a short outage, waiters must be heard of again
within `WAITER_TTL_SECONDS`, or they lose their places."""

REPLICA_WAIT_SECONDS = 1.0
"""The wanted number of replicas must confirm a write within this time."""

REPLICA_SHARE_OF_LIMIT = 0.8
"""The server may wait for its replicas for this part of the time that a reply may take."""

MAX_LOCKS_PER_CALL = 100
"""More locks in one script call would delay other clients."""

# Renewal

RENEWAL_REPLY_SECONDS = 2.0
"""How long a renewer waits for a reply, unless the shortest lease requires less."""

RENEWAL_RETRY_SECONDS = 1.0
"""How long after a failed renewal it is retried, or a tenth of the lease if that is less, or a
quarter of the time that is left."""

MIN_RENEWAL_RETRY_SECONDS = 0.1
"""The shortest time until then. Each attempt is logged."""

RENEWER_IDLE_SECONDS = 10.0
"""A renewer without a lease ends after this time. To start one costs more than a renewal."""

BACKGROUND_RELEASE_SECONDS = 3600.0
"""How long a release is retried in the background, or until the lease ends if that is sooner."""

MAX_RELEASES_PER_ROUND = 5000
"""How many locks are released in one round trip, so that renewals do not wait for them."""

LATE_REQUEST_SECONDS = 5.0
"""A server that was paused may still execute an acquisition for this time after it replied
that the lock is not held."""

# Quorum

QUORUM_REPLY_SECONDS = 0.5
"""How long one server may take to reply, unless `QUORUM_REPLY_FRACTION` of the lease is less: the
caller needs most of the lease for the other servers and for its work."""

QUORUM_REPLY_FRACTION = 0.2

QUORUM_GATHER_SECONDS = 0.25
"""How long a caller that queued at the first server waits at the others, whose previous holder may
be releasing them at this moment."""

QUORUM_PAUSE_SECONDS = 0.01, 0.2
"""The range of the random pause between two attempts, which separates rivals."""

QUORUM_DRIFT = 0.01, 0.002
"""The part of a lease to ignore, as Redlock does: a fraction of it, and seconds."""

# Stored messages

RESEND_SECONDS = 3.0
"""A message that got its lock is sent by somebody else after this time, unless it was sent."""
