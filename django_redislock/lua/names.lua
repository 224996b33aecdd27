-- Name the locks of some buckets that are held, those whose last lease ends first.
--
-- KEYS  of each bucket: index, the base of the lock keys, history
-- ARGV  limit, then the pieces of a pattern between its wildcards, if only names that match
--       it are wanted (each a pattern of Lua without repetitions, but for ?, which is any
--       one character), kept
--
-- Answer  of each bucket {how many there are, {name, lease end (ms), name, lease end, ...}}: not
--         more than limit of it

--> _lock.lua
--> _notes.lua
--> _holders.lua
--> _queue.lua

local limit = tonumber(ARGV[1])
local CHUNK = 1000
local LONGEST = 512 -- bytes of a name: longer ones are none, and could take long to look through

local pieces = {}
for i = 2, #ARGV - 1 do
  pieces[i - 1] = string.gsub(ARGV[i], '?', function() -- in UTF-8
    return '[%z\1-\127\194-\244][\128-\191]*'
  end)
end

-- Whether all pieces stand in `text`, the first at its beginning, the last at its end. To take
-- the first place that fits is enough for each but the last.
local function matches(text)
  if #pieces == 1 then return string.find(text, '^' .. pieces[1] .. '$') end
  local _, at = string.find(text, '^' .. pieces[1])
  for i = 2, #pieces - 1 do
    if at then _, at = string.find(text, pieces[i], at + 1) end
  end
  return at and string.find(string.sub(text, at + 1), pieces[#pieces] .. '$')
end

local function within(skip, count)
  return redis.call('ZRANGEBYSCORE', index, '(' .. now_ms, FENCE_ABOVE,
    'WITHSCORES', 'LIMIT', skip, count)
end

local function first_of_all()
  return redis.call('ZCOUNT', index, '(' .. now_ms, FENCE_ABOVE), within(0, limit)
end

local function first_that_match()
  local told, found, skip = {}, 0, 0
  repeat
    local chunk = within(skip, CHUNK)
    for i = 1, #chunk, 2 do
      if #chunk[i] <= LONGEST and matches(chunk[i]) then
        found = found + 1
        if found <= limit then
          told[#told + 1] = chunk[i]
          told[#told + 1] = chunk[i + 1]
        end
      end
    end
    skip = skip + CHUNK
  until #chunk == 0
  return found, told
end

local answer, buckets = {}, #KEYS / 3
for i = 1, #KEYS, 3 do
  index, history = KEYS[i], KEYS[i + 2]
  forget_the_expired(KEYS[i + 1], math.floor(FORGOTTEN / buckets))
  local found, told = (#pieces == 0 and first_of_all or first_that_match)()
  answer[#answer + 1] = { found, told }
end
return cjson.encode(answer)
