-- Tell of the locks of one bucket, a page of them. Changes nothing but to forget what has run out.
--
-- KEYS  index, the bases of the lock and waiting keys, history
-- ARGV  from (ms: locks whose last lease ends then or later), told ("3 of 7": so many that end at
--       `from` are told already, of as many as there were; '' for none), limit, kept
--
-- Answer  now (ms), from and told of the next page (from is '' where there is none), {row, ...}

--> _lock.lua
--> _notes.lua
--> _holders.lua
--> _queue.lua
--> _rows.lua

index = KEYS[1]
local locks, waitings = KEYS[2], KEYS[3]
local from, told, limit = ARGV[1], ARGV[2], ARGV[3]

forget_the_expired(locks)

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

local skip = to_skip()
local page = redis.call(
  'ZRANGEBYSCORE', index, from, FENCE_ABOVE, 'WITHSCORES', 'LIMIT', skip, limit)
local names, its_locks, its_waitings, next_from, next_told = {}, {}, {}, '', ''
for i = 1, #page, 2 do
  local place = #names + 1
  names[place], its_locks[place] = page[i], locks .. page[i]
  its_waitings[place] = waitings .. page[i]
end
if #page == limit * 2 then next_from, next_told = next_page(page, skip) end
return cjson.encode({ now_ms, next_from, next_told, rows(names, its_locks, its_waitings) })
