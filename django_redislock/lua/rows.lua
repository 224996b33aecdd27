-- Read some locks of a bucket. Changes nothing.
--
-- KEYS   lock, queue and waiting of each lock, inboxes, history
-- ARGV   MAX_EVENTS
--
-- Reply  JSON: now (ms), { number of live waiters, arrival (us) of the first of them or 0,
--        { field, value, ... } } of each lock. The fields are as they are stored, with holders that
--        have expired or do not parse.

--> _lock.lua
--> _parsing.lua

local inboxes, rows = KEYS[#KEYS - 1], {}
for i = 1, #KEYS - 2, 3 do
  local alive, waiters, first = {}, 0, '0'
  local waiting = read('HGETALL', KEYS[i + 2])
  for j = 1, #waiting, 2 do
    if parse_waiter(waiting[j + 1], inboxes) then
      alive[waiting[j]], waiters = true, waiters + 1
    end
  end
  local members = waiters > 0 and read('ZRANGE', KEYS[i + 1], 0, -1, 'WITHSCORES') or {}
  for j = 1, #members, 2 do
    if alive[members[j]] then
      first = members[j + 1]
      break
    end
  end
  rows[#rows + 1] = { waiters, first, read('HGETALL', KEYS[i]) }
end
return cjson.encode({ now_ms, rows })
