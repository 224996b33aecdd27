-- Read the live waiters of a lock, the first in the queue first. Changes nothing.
--
-- KEYS   queue, waiting, inboxes, history
-- ARGV   limit, MAX_EVENTS
--
-- Reply  JSON: now (ms), { { arrival (us), waiter record }, ... }

--> _lock.lua
--> _parsing.lua

local queue, waiting, inboxes = unpack(KEYS)
local limit, start, found = tonumber(ARGV[1]), 0, {}
repeat
  local members = redis.call('ZRANGE', queue, start, start + limit - 1, 'WITHSCORES')
  for i = 1, #members, 2 do
    local record = redis.call('HGET', waiting, members[i])
    if parse_waiter(record, inboxes) then found[#found + 1] = { members[i + 1], record } end
    if #found == limit then break end
  end
  start = start + limit
until #found == limit or #members < 2 * limit
return cjson.encode({ now_ms, found })
