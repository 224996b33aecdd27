-- Read the live waiters of a lock, the first in the queue first. Changes nothing.
--
-- KEYS   queue, waiting, inboxes, history
-- ARGV   limit, MAX_EVENTS
--
-- Reply  JSON: now (ms), { { arrival (us), waiter record, token of a stored message or '' }, ... }

--> _lock.lua
--> _parsing.lua
--> _messages.lua
--> _waiters.lua

local queue, waiting, inboxes = unpack(KEYS)
return cjson.encode({ now_ms, first_waiters(queue, waiting, inboxes, tonumber(ARGV[1])) })
