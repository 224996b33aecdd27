-- Tell what happened lately to the locks of one bucket, or to one of them.
--
-- KEYS  index, the base of the lock keys, history
-- ARGV  name ('' for all), limit (0: the rates alone), kept
--
-- Answer  now (ms), {ended, ...}, {broken, ...}, {refused, ...}, rates: events as they are in the
--         streams, the latest first, each {field, value, ...}; the hash of rates, likewise flat

--> _lock.lua
--> _notes.lua
--> _holders.lua
--> _queue.lua

index = KEYS[1]
local wanted, limit = ARGV[1], tonumber(ARGV[2])
local CHUNK = 200
forget_the_expired(KEYS[2])

local function latest(stream)
  if limit == 0 then return {} end
  local found, before = {}, '+'
  repeat
    local chunk = read('XREVRANGE', history .. stream, before, '-', 'COUNT', CHUNK)
    for _, entry in ipairs(chunk) do
      local fields = entry[2]
      if #found < limit and (wanted == '' or fields[2] == wanted) then found[#found + 1] = fields end
      before = '(' .. entry[1]
    end
  until #chunk < CHUNK or #found >= limit
  return found
end

return cjson.encode({
  now_ms, latest('ended'), latest('broken'), latest('refused'),
  read('HGETALL', history .. 'rates'),
})
