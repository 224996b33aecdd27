-- Tell of the locks of one bucket: a page of them, or some by name. Changes nothing
-- but to forget what has run out.
--
-- KEYS  index, the bases of the lock and waiting keys, history
-- ARGV  from (ms: locks whose last lease ends then or later), skip, limit,
--       then names, if only these are wanted (from, skip and limit are then unread), kept
--
-- Answer  {now (ms), number of locks held in the bucket, from and skip of the next page
--          (from is '' where there is none),
--          {{name, kind, capacity, waiters, {token, holder, token, holder, ...}}, ...}}
--         A name that nobody holds or waits for is left out.

--> _lock.lua
--> _notes.lua
--> _holders.lua
--> _queue.lua

index = KEYS[1]
local locks, waitings = KEYS[2], KEYS[3]
local from, skip, limit = ARGV[1], ARGV[2], ARGV[3]

forget_the_expired(locks)

local function live_holders(fields)
  local holders = {}
  for i = 1, #fields, 2 do
    local token = string.match(fields[i], '^h:(.*)$')
    local holder = token and read_holder(fields[i + 1])
    if holder and holder.expires > now then
      holders[#holders + 1] = token
      holders[#holders + 1] = fields[i + 1]
    end
  end
  return holders
end

local function live_waiters(name)
  local count = 0
  for _, record in ipairs(read('HVALS', waitings .. name)) do
    local waiter = read_waiter(record)
    if waiter and waiter.alive >= now then count = count + 1 end
  end
  return count
end

local function row(name)
  local fields = read('HGETALL', locks .. name)
  local holders, waiters = live_holders(fields), live_waiters(name)
  if #holders == 0 and waiters == 0 then return nil end
  local facts = {}
  for i = 1, #fields, 2 do facts[fields[i]] = fields[i + 1] end
  return { name, facts.kind or '', facts.capacity or '0', waiters, holders }
end

-- Where the next page begins: how many of the last score have been told by now.
local function next_page(page)
  local last, told = page[#page], 0
  for i = #page, 2, -2 do
    if page[i] ~= last then return last, told end
    told = told + 1
  end
  return last, told + (last == from and tonumber(skip) or 0)
end

local rows, next_from, next_skip = {}, '', 0
if #ARGV > 4 then
  for i = 4, #ARGV - 1 do rows[#rows + 1] = row(ARGV[i]) end
elseif limit ~= '0' then
  local page = redis.call(
    'ZRANGEBYSCORE', index, from, FENCE_ABOVE, 'WITHSCORES', 'LIMIT', skip, limit)
  for i = 1, #page, 2 do rows[#rows + 1] = row(page[i]) end
  if #page == limit * 2 then next_from, next_skip = next_page(page) end
end
return { now_ms, redis.call('ZCOUNT', index, '(' .. now_ms, FENCE_ABOVE), next_from, next_skip, rows }
