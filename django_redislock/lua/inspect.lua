-- Tell of the locks of one bucket: a page of them, or some by name. Changes nothing
-- but to forget what has run out.
--
-- KEYS  index, the bases of the lock and waiting keys, history
-- ARGV  from (ms: locks whose last lease ends then or later), told ("3 of 7": so many that end at
--       `from` are told already, of as many as there were; '' for none), limit,
--       then names, if only these are wanted (what is before them is then unread), kept
--
-- Answer  {now (ms), number of locks held in the bucket, from and told of the next page
--          (from is '' where there is none),
--          {row, ...}}, each row the lines: name, kind, capacity, waiters, and of each holder
--          its token and its record
--         A name that nobody holds or waits for is left out. A row is one text, as most clients take
--         many times as long to read a list.

--> _lock.lua
--> _notes.lua
--> _holders.lua
--> _queue.lua

index = KEYS[1]
local locks, waitings = KEYS[2], KEYS[3]
local from, told, limit = ARGV[1], ARGV[2], ARGV[3]

forget_the_expired(locks)

local function live_waiters(name)
  local count = 0
  for _, record in ipairs(read('HVALS', waitings .. name)) do
    local waiter = read_waiter(record)
    if waiter and waiter.alive >= now then count = count + 1 end
  end
  return count
end

-- Whether it is as these scripts write it, for whom nothing takes two lines.
local function is_line(text)
  return not string.find(text, '\n', 1, true)
end

local function row(name)
  local fields = read('HGETALL', locks .. name)
  local told = { name, '', '0', live_waiters(name) }
  for i = 1, #fields, 2 do
    local field, value = fields[i], fields[i + 1]
    if string.sub(field, 1, 2) == 'h:' then
      local holder = read_holder(value)
      if holder and holder.expires > now and is_line(field) and is_line(value) then
        told[#told + 1] = string.sub(field, 3)
        told[#told + 1] = value
      end
    elseif field == 'kind' then
      told[2] = value
    elseif field == 'capacity' then
      told[3] = value
    end
  end
  if #told == 4 and told[4] == 0 then return nil end
  return table.concat(told, '\n')
end

local function ending_at(score)
  return redis.call('ZCOUNT', index, score, score)
end

-- How many of those that end at `from` to pass over: none where some were renewed meanwhile, as
-- those would not be the same.
local function to_skip()
  local skip, of = string.match(told, '^(%d+) of (%d+)$')
  return skip and ending_at(from) == tonumber(of) and tonumber(skip) or 0
end

-- Where the next page begins.
local function next_page(page, skip)
  local last, count = page[#page], 0
  for i = #page, 2, -2 do
    if page[i] ~= last then break end
    count = count + 1
  end
  if last == from then count = count + skip end
  return last, count .. ' of ' .. ending_at(last)
end

local rows, next_from, next_told = {}, '', ''
if #ARGV > 4 then
  for i = 4, #ARGV - 1 do rows[#rows + 1] = row(ARGV[i]) end
elseif limit ~= '0' then
  local skip = to_skip()
  local page = redis.call(
    'ZRANGEBYSCORE', index, from, FENCE_ABOVE, 'WITHSCORES', 'LIMIT', skip, limit)
  for i = 1, #page, 2 do rows[#rows + 1] = row(page[i]) end
  if #page == limit * 2 then next_from, next_told = next_page(page, skip) end
end
return { now_ms, redis.call('ZCOUNT', index, '(' .. now_ms, FENCE_ABOVE), next_from, next_told, rows }
