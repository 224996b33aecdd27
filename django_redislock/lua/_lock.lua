-- What a lock looks like in Redis, and what every script knows of it.
--
-- A lock is a weighted FIFO semaphore with leases. Its keys, all in one slot:
--
--   lock     hash, expires with the last lease:
--              kind, capacity  what it is, and the weight that fits in at once
--              used            the weight of those who hold
--              soonest         no lease ends before this (ms)
--              latest          no lease ends after this (ms)
--              h:<token>       a holder: "weight expires fence acquired waited lease info";
--                              a lease of 0: released, and kept for its cooldown
--   queue    sorted set: who waits, by the time of arrival (us)
--   waiting  hash, token -> "alive weight claim lease kind info"; a waiter shows life
--              by asking again before `alive` (ms)
--   grants   base of the lists `<grants><token>:<name>`, where a waiter sits in a
--              blocking pop; a grant pushed there is its fencing token
--   index    sorted set of the whole bucket: name -> `latest`; the member '' is the
--              last fencing token given in this bucket, and the only one that stays
--   history  base of what is told of the whole bucket's past, if any is kept:
--              ended    stream, a holding that ended as it should
--              broken   stream, one that ended otherwise: ordinary ends don't push it out
--              refused  stream, an acquisition that was not let in
--              rates    hash, "<minute> <what>" -> how often in that minute
--
-- Times are Redis's own, in ms since the epoch; `info` is JSON that is stored unread.
-- The last of KEYS is always the base of the history, the last of ARGV how many of the
-- latest events each stream keeps (0: there is no history). While one is kept, a lock
-- whose last lease ran out stays for an hour, so that somebody can note its end.
--
-- What tells answers JSON: most clients take many times as long to read a list. There an empty
-- table is {}, also where others are lists.
--
-- Others may write here too. What is not as these scripts write it counts as not there, and
-- keeps no other lock of the bucket from being renewed, released or told of.

local lock, queue, waiting, index, grants, name
local history, kept = KEYS[#KEYS], ARGV[#ARGV]
local MINUTE, HOUR = 60000, 3600000
local NUMBERS = 100 -- characters that the numbers of a record take at most

-- Now, in us and in ms as text (to make text of a number is slow), and in ms as a number.
local clock = redis.call('TIME')
local us = string.sub('00000' .. clock[2], -6)
local now_us, now_ms = clock[1] .. us, clock[1] .. string.sub(us, 1, 3)
local now = tonumber(now_ms)
