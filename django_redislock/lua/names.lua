-- Name the locks of one bucket that are held, those whose last lease ends first.
--
-- KEYS  index, the base of the lock keys, history
-- ARGV  limit, then the pieces of a pattern between its wildcards, if only names that match
--       it are wanted (each a pattern of Lua without repetitions, but for ?, which is any
--       one character), kept
--
-- Answer  {how many there are, the lines: name, lease end (ms), name, lease end, ...}: not more
--         than limit. The lines are one text, as most clients take many times as long to read a list.

--> _lock.lua
--> _notes.lua
--> _holders.lua
--> _queue.lua

index = KEYS[1]
local limit = tonumber(ARGV[1])
local CHUNK = 1000
local LONGEST = 512 -- bytes of a name: longer ones are none, and could take long to look through
forget_the_expired(KEYS[2])

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

local lines, found, skip = {}, 0, 0

-- Names of two lines are none, and would be taken for two.
local function tell(name, lease_end)
  if string.find(name, '\n', 1, true) then return end
  lines[#lines + 1] = name
  lines[#lines + 1] = lease_end
end

if #pieces == 0 then
  local all = within(0, limit)
  for i = 1, #all, 2 do tell(all[i], all[i + 1]) end
  found = redis.call('ZCOUNT', index, '(' .. now_ms, FENCE_ABOVE)
else
  repeat
    local chunk = within(skip, CHUNK)
    for i = 1, #chunk, 2 do
      if #chunk[i] <= LONGEST and matches(chunk[i]) then
        found = found + 1
        if found <= limit then tell(chunk[i], chunk[i + 1]) end
      end
    end
    skip = skip + CHUNK
  until #chunk == 0
end
return { found, table.concat(lines, '\n') }
