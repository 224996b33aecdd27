-- How locks are stored, and what every script needs: constants, the clock, and MAX_EVENTS.
--
-- A lock is a weighted FIFO semaphore with leases. All keys share a hash tag, so they are in
-- one slot of a Cluster:
--
--   lock     hash of one lock:
--              kind, capacity  the lock type, and the largest total weight of the holders
--              used            the total weight of the holders
--              soonest         no lease expires before this time (ms)
--              latest          no lease expires after this time (ms)
--              released        when the last cooldown began (ms)
--              h:<token>       a holder: "weight expires fence acquired waited lease payload".
--                              A lease of 0 means cooldown: released, but kept until `expires`
--   queue    sorted set, the tokens of the waiters by arrival (us)
--   waiting  hash, token -> waiter: "format inbox ticket capacity weight grant_ttl lease kind
--              payload". A version that changes the other fields changes the number of the format
--   inboxes  prefix of the inboxes. The waiters of one process (or event loop) share an inbox:
--              <inbox>        list. A script that makes a waiter a holder pushes a grant there:
--                             "ticket fence epoch". The ticket is the number of the waiter
--              <inbox>:alive  string, the epoch: the number of the last heartbeat. It expires if no
--                             heartbeat follows. Then all waiters of the inbox are dead
--              outbox:*       stored messages: see _messages.lua
--   index    sorted set, name -> `latest`. The score of the member '' is the last fencing token.
--            This member is never removed
--   history  prefix of the history:
--              ended    stream, holds that ended as intended
--              broken   stream, other ends of holds, so that ordinary ends do not displace them
--              refused  stream, acquisitions that were refused
--              rates    hash, "<minute> <what>" -> number of events in that minute
--
-- A token belongs to one request to acquire a lock. It is random. If the caller chose a token, it is
-- that token, a colon and a random part, so another request with the chosen token is another caller.
--
-- Times are by the clock of the server, in ms since the epoch. `payload` is JSON, stored unread.
--
-- In every script the last of KEYS is the prefix `history`, and the last of ARGV is MAX_EVENTS:
-- how many events each stream keeps (0: no history). With a history, the hash of a lock stays for
-- an hour after its last lease, so that a later script can record the expiry.
--
-- A script touches its KEYS, and keys of the same slot that start with them: the streams of
-- `history`, the keys of `inboxes`, and the hashes of other locks that have expired.
-- The caller passes prefixes, because it does not know these waiters and locks.
--
-- Other programs can write here too. A record or a number that does not parse counts as missing,
-- and a key of another type as empty: a script that only reads skips it, others delete it. So one
-- bad key never blocks other locks, and its own lock not for long.
--
-- Scripts that read reply with JSON, because most clients parse nested lists many times more
-- slowly. An empty list is {} there.

local MAX_EVENTS = ARGV[#ARGV]
local MINUTE_MS, HOUR_MS = 60000, 3600000
local FENCE_ABOVE = 100000000000000 -- from here on a number is a fencing token (us), no time (ms)
local MAX_NUMBERS_BYTES = 100 -- the numbers of a record are never longer

-- The time in us and ms as text, because numbers are slow to convert, and in ms as a number.
local clock = redis.call('TIME')
local us = clock[2]
if #us < 6 then us = string.sub('00000' .. us, -6) end
local now_us = clock[1] .. us
local now_ms = string.sub(now_us, 1, -4)
local now = tonumber(now_ms)

-- Return whether a reply says that the key has another type.
local function has_another_type(reply)
  return type(reply) == 'table' and reply.err and string.find(reply.err, 'WRONGTYPE')
end
