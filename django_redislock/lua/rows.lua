-- Read some locks of a bucket. Changes nothing.
--
-- KEYS   lock and waiting of each lock, inboxes, history
-- ARGV   MAX_EVENTS
--
-- Reply  JSON: now (ms), { number of live waiters, { field, value, ... } } of each lock. The fields
--        are as they are stored, with holders that have expired or do not parse.

--> _lock.lua
--> _parsing.lua

local inboxes, rows = KEYS[#KEYS - 1], {}
for i = 1, #KEYS - 2, 2 do
  local waiters = 0
  for _, record in ipairs(read('HVALS', KEYS[i + 1])) do
    if parse_waiter(record, inboxes) then waiters = waiters + 1 end
  end
  rows[#rows + 1] = { waiters, read('HGETALL', KEYS[i]) }
end
return cjson.encode({ now_ms, rows })
