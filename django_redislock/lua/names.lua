-- Name the locks of one bucket that are held, those whose last lease ends first.
--
-- KEYS  index, the base of the lock keys, history
-- ARGV  limit, then the pieces of a pattern between its wildcards, if only names that match
--       it are wanted (each a pattern of Lua without repetitions), kept
--
-- Answer  {how many there are, {name, lease end (ms), name, lease end, ...}}: not more than limit

index = KEYS[1]
local limit = tonumber(ARGV[1])
local CHUNK = 1000
forget_the_expired(KEYS[2])

-- Whether all pieces stand in `text`, the first at its beginning, the last at its end. To take
-- the first place that fits is enough for each but the last.
local function matches(text)
  local last = #ARGV - 1
  if last == 2 then return string.find(text, '^' .. ARGV[2] .. '$') end
  local _, at = string.find(text, '^' .. ARGV[2])
  for i = 3, last - 1 do
    if at then _, at = string.find(text, ARGV[i], at + 1) end
  end
  return at and string.find(string.sub(text, at + 1), ARGV[last] .. '$')
end

local function within(skip, count)
  return redis.call('ZRANGEBYSCORE', index, '(' .. digits(now), FENCE_ABOVE,
    'WITHSCORES', 'LIMIT', skip, count)
end

if #ARGV == 2 then
  return { redis.call('ZCOUNT', index, '(' .. digits(now), FENCE_ABOVE), within(0, limit) }
end

local found, rows, skip = 0, {}, 0
repeat
  local chunk = within(skip, CHUNK)
  for i = 1, #chunk, 2 do
    if matches(chunk[i]) then
      found = found + 1
      if found <= limit then rows[#rows + 1], rows[#rows + 2] = chunk[i], chunk[i + 1] end
    end
  end
  skip = skip + CHUNK
until #chunk == 0
return { found, rows }
