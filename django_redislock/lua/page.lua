-- Tell of the locks of some buckets whose last lease ends first. Changes nothing but to forget what
-- has run out.
--
-- KEYS  of each bucket: index, the bases of the lock and waiting keys, history
-- ARGV  start, stop: which of them, from 0, in the order in which they end, and then of the
--       buckets; kept
--
-- Answer  now (ms), how many there are in all, {row, ...}

--> _lock.lua
--> _notes.lua
--> _holders.lua
--> _queue.lua
--> _rows.lua

local start, stop = tonumber(ARGV[1]), tonumber(ARGV[2])
local count = #KEYS / 4
local chunk = math.ceil(stop / count) + 2 -- of a bucket at a time: names are spread evenly
local total = 0

-- Of each bucket the chunk that was read last, the place of its next lock there, how many were
-- passed over to get to that, and when that one ends (math.huge: there is none).
local read_last, at, passed, ends = {}, {}, {}, {}

local function advance(i)
  at[i], passed[i] = at[i] + 2, passed[i] + 1
  if at[i] > #read_last[i] then
    at[i], read_last[i] = 1, redis.call(
      'ZRANGEBYSCORE', KEYS[i * 4 - 3], '(' .. now_ms, FENCE_ABOVE,
      'WITHSCORES', 'LIMIT', passed[i], chunk)
  end
  ends[i] = tonumber(read_last[i][at[i] + 1] or math.huge)
end

-- The bucket whose next lock ends first, if any has one.
local function soonest()
  local first, least = nil, math.huge
  for i = 1, count do
    if ends[i] < least then first, least = i, ends[i] end
  end
  return first
end

for i = 1, count do
  index, history = KEYS[i * 4 - 3], KEYS[i * 4]
  forget_the_expired(KEYS[i * 4 - 2], math.floor(FORGOTTEN / count))
  total = total + redis.call('ZCOUNT', index, '(' .. now_ms, FENCE_ABOVE)
  read_last[i], at[i], passed[i] = {}, -1, -1
  advance(i)
end

local names, locks, waiting = {}, {}, {}
for place = 0, stop - 1 do
  local i = soonest()
  if not i then break end
  if place >= start then
    local found = read_last[i][at[i]]
    names[#names + 1], locks[#locks + 1] = found, KEYS[i * 4 - 2] .. found
    waiting[#waiting + 1] = KEYS[i * 4 - 1] .. found
  end
  advance(i)
end
return cjson.encode({ now_ms, total, rows(names, locks, waiting) })
