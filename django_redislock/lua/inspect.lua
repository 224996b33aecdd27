-- Tell of the locks of one bucket, a page of them. Changes nothing but to forget what has run out.
--
-- KEYS  index, the bases of the lock and waiting keys, history
-- ARGV  from (ms: locks whose last lease ends then or later), told ('' for the first page, else as
--       _index.lua has it), limit, kept
--
-- Answer  now (ms), from and told of the next page (from is '' where there is none), {row, ...}

--> _lock.lua
--> _notes.lua
--> _holders.lua
--> _queue.lua
--> _rows.lua
--> _index.lua

index = KEYS[1]
local locks, waitings = KEYS[2], KEYS[3]
local limit = tonumber(ARGV[3])

-- One round trip has a call for each bucket. Together they forget no more than FORGOTTEN.
forget_the_expired(locks, math.min(FORGOTTEN, math.ceil(limit / 4)))

local page, next_from, next_told = read_page(ARGV[1], ARGV[2], limit)
local names, its_locks, its_waitings = {}, {}, {}
for i = 1, #page, 2 do
  local place = #names + 1
  names[place], its_locks[place] = page[i], locks .. page[i]
  its_waitings[place] = waitings .. page[i]
end
return cjson.encode({ now_ms, next_from, next_told, rows(names, its_locks, its_waitings) })
