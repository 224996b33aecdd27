-- What is told of a lock.

local function live_waiters(waiting)
  local count = 0
  for _, record in ipairs(read('HVALS', waiting)) do
    local waiter = read_waiter(record)
    if waiter and waiter.alive >= now then count = count + 1 end
  end
  return count
end

-- {name, waiters, {field, value, ...}}: as it stands, with what is over or not as it should be.
local function row(name, lock, waiting)
  return { name, waiting and live_waiters(waiting) or 0, read('HGETALL', lock) }
end

-- The same of some: their names, and the lock and waiting key of each.
local function rows(names, locks, waiting)
  local told = {}
  local waits = #names > 0 and redis.call('EXISTS', unpack(waiting)) > 0 -- for any of them
  for i = 1, #names do
    told[i] = row(names[i], locks[i], waits and waiting[i])
  end
  return told
end
