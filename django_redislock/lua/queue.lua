-- Tell who waits for a lock and has shown life lately, first to last.
--
-- KEYS  queue, waiting, history
-- ARGV  limit, kept
--
-- Answer  {now (ms), {token, arrival (us), waiter, token, arrival, waiter, ...}}

--> _lock.lua
--> _notes.lua
--> _holders.lua
--> _queue.lua

queue, waiting = KEYS[1], KEYS[2]
local rows = {}
local standing = redis.call('ZRANGE', queue, 0, -1, 'WITHSCORES')
for i = 1, #standing, 2 do
  local record = redis.call('HGET', waiting, standing[i])
  local waiter = read_waiter(record)
  if #rows < ARGV[1] * 3 and waiter and waiter.alive >= now then
    rows[#rows + 1], rows[#rows + 2], rows[#rows + 3] = standing[i], standing[i + 1], record
  end
end
return { now_ms, rows }
