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

-- As many endings as are wanted. A loss is noted without a record once its holder comes, maybe long
-- after the lease ended: one that was told of brings its ending with it, wherever that is.
local function latest(stream)
  if limit == 0 then return {} end
  local found, before, endings, losses = {}, '+', 0, {}
  repeat
    local chunk = read('XREVRANGE', history .. stream, before, '-', 'COUNT', CHUNK)
    for _, entry in ipairs(chunk) do
      local fields = entry[2]
      local which = (fields[2] or '') .. '\n' .. (fields[6] or '')
      if (wanted == '' or fields[2] == wanted) and (endings < limit or losses[which]) then
        found[#found + 1] = fields
        losses[which] = fields[12] == '' or nil
        if not losses[which] then endings = endings + 1 end
      end
      before = '(' .. entry[1]
    end
  until #chunk < CHUNK or (endings >= limit and next(losses) == nil)
  return found
end

return cjson.encode({
  now_ms, latest('ended'), latest('broken'), latest('refused'),
  read('HGETALL', history .. 'rates'),
})
