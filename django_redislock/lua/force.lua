-- Release a lock for its holder, or holders, and hand it to the next who waits.
--
-- KEYS  lock, queue, waiting, index, grants, history
-- ARGV  name, field of the holder in the hash of the lock ('' for every holder), kept. A field and
--       not a token, because another program may have written a holder whose token is empty.
--
-- Answer  the tokens of those who held it and no longer do

--> _lock.lua
--> _notes.lua
--> _holders.lua
--> _queue.lua

lock, queue, waiting, index, grants = unpack(KEYS)
name = ARGV[1]
local chosen = ARGV[2]
local state = load('')
sweep(state)

local gone, last_end = {}, 0
local fields = redis.call('HGETALL', lock)
for i = 1, #fields, 2 do
  local token = string.match(fields[i], '^h:(.*)$')
  if token and (chosen == '' or chosen == fields[i]) then
    redis.call('HDEL', lock, fields[i])
    redis.call('DEL', grants .. token .. ':' .. name) -- it may not know of its turn yet
    local holder = read_holder(fields[i + 1])
    if holder then
      state.used = state.used - holder.weight
      last_end = math.max(last_end, holder.expires)
    end
    if holder and holder.lease > 0 then note_break(state.kind, token, fields[i + 1], 'forced', now) end
    gone[#gone + 1] = token
  end
end

local noted = chosen == '' and state.used > 0 -- also of nobody who is there
if chosen == '' then state.used = 0 end
if #gone > 0 or noted then
  shorten(state, last_end)
  hand_over(state)
end
return gone
