-- Read some locks. Changes nothing.
--
-- KEYS   lock, queue and waiting of each lock, the prefix of the lock hashes, inboxes, history
-- ARGV   MAX_EVENTS
--
-- Reply  JSON: now (ms), { number of live waiters and stored messages, how long the first of them has waited (ms),
--        { field, value, ... } } of each lock. The fields are as they are stored, with holders that
--        have expired or do not parse.

--> _lock.lua
--> _parsing.lua
--> _messages.lua
--> _waiters.lua

local locks, inboxes, rows = KEYS[#KEYS - 2], KEYS[#KEYS - 1], {}
for i = 1, #KEYS - 3, 3 do
  local lock, queue, waiting = unpack(KEYS, i, i + 2)
  local name = string.sub(lock, #locks + 1)
  local messages = unpack(read('HMGET', outbox_key(inboxes, 'counts'), name))
  local waiters, arrived = tonumber(messages or 0), nil
  for _, record in ipairs(read('HVALS', waiting)) do
    if parse_waiter(record, inboxes) then waiters = waiters + 1 end
  end
  if waiters > 0 then
    local first = first_waiters(queue, waiting, inboxes, 1)[1]
    arrived = first and parse_number(first[1] / 1000)
  end
  rows[#rows + 1] = { waiters, math.max(now - (arrived or now), 0), read('HGETALL', lock) }
end
return cjson.encode({ now_ms, rows })
