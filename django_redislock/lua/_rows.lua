-- The snapshots of locks that listings reply with.

-- The number of live waiters. `waiting` is the key of their hash: <base>waiting:<name>.
local function count_waiters(name, waiting)
  local inboxes = string.sub(waiting, 1, -#'waiting:' - #name - 1) .. 'inbox:'
  local number = 0
  for _, record in ipairs(read('HVALS', waiting)) do
    if parse_waiter(record, inboxes) then number = number + 1 end
  end
  return number
end

-- Return { name, number of live waiters, { field, value, ... } } of each lock. The fields are as
-- they are stored, with holders that have expired or do not parse.
local function rows(names, locks, waiting)
  local found = {}
  local any_waits = #names > 0 and redis.call('EXISTS', unpack(waiting)) > 0
  for i = 1, #names do
    local waiters = any_waits and count_waiters(names[i], waiting[i]) or 0
    found[i] = { names[i], waiters, read('HGETALL', locks[i]) }
  end
  return found
end
