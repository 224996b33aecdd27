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

local names, locks, waiting = {}, {}, {}
for i = 1, #ARGV - 1 do
  names[i], locks[i], waiting[i] = ARGV[i], KEYS[i], KEYS[#ARGV - 1 + i]
end
return cjson.encode({ now_ms, rows(names, locks, waiting) })
