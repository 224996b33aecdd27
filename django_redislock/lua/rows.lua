-- Read some locks by name. Changes nothing.
--
-- KEYS   the lock hash of each lock, then the waiting hash of each, history
-- ARGV   the name of each lock, MAX_EVENTS
--
-- Reply  JSON: now (ms), { row, ... } (see _rows.lua)

--> _lock.lua
--> _parsing.lua
--> _rows.lua

local names, locks, waiting = {}, {}, {}
local count = #ARGV - 1
for i = 1, count do
  names[i], locks[i], waiting[i] = ARGV[i], KEYS[i], KEYS[count + i]
end
return cjson.encode({ now_ms, rows(names, locks, waiting) })
