-- Tell who waits for a lock and has shown life lately, first to last.
--
-- KEYS  queue, waiting, history
-- ARGV  limit, kept
--
-- Answer  now (ms), {{arrival (us), waiter}, ...}

--> _lock.lua
--> _notes.lua
--> _holders.lua
--> _queue.lua

queue, waiting = KEYS[1], KEYS[2]
local limit, rows = tonumber(ARGV[1]), {}
local standing = redis.call('ZRANGE', queue, 0, -1, 'WITHSCORES')
for i = 1, #standing, 2 do
  local record = redis.call('HGET', waiting, standing[i])
  local waiter = read_waiter(record)
  if #rows < limit and waiter and waiter.alive >= now then
    rows[#rows + 1] = { standing[i + 1], record }
  end
end
return cjson.encode({ now_ms, rows })
