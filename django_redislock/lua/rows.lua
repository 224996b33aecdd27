-- Tell of some locks by name. Changes nothing.
--
-- KEYS  of each its lock key, then of each its waiting key, history
-- ARGV  of each its name, then kept
--
-- Answer  now (ms), {row, ...}

--> _lock.lua
--> _notes.lua
--> _holders.lua
--> _queue.lua
--> _rows.lua

local count, rows = #ARGV - 1, {}
local waits = redis.call('EXISTS', unpack(KEYS, count + 1, count * 2)) > 0 -- for any of them
for i = 1, count do
  rows[i] = row(ARGV[i], KEYS[i], waits and KEYS[count + i])
end
return cjson.encode({ now_ms, rows })
