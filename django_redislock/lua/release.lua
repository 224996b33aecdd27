-- Let go of a lock and hand it to the next who waits; or give up waiting for it.
--
-- KEYS  lock, queue, waiting, index, grants, history
-- ARGV  name, token, ms for which it is to stay taken, counted from when it was acquired,
--       fencing token of the holding that the caller took for its own (if it has none, that is
--       a loss) or 0, kept
--
-- Answer  1  it was held by this token, and is no longer; or that very holding was released
--            lately: who got no answer may ask again, for as long as the history knows
--         0  it was not held by this token, which waits no longer either

--> _lock.lua
--> _notes.lua

lock, queue, waiting, index, grants = unpack(KEYS)
name = ARGV[1]
local token, at_least, fence = ARGV[2], ARGV[3], ARGV[4]
local grant = grants .. token .. ':' .. name -- still there, if it was never popped

-- The usual case: nobody else holds it or waits for it.
if at_least == '0' and redis.call('EXISTS', queue) == 0 then
  local kind, used, record = unpack(redis.call('HMGET', lock, 'kind', 'used', 'h:' .. token))
  local weight, expires, lease, info = string.match(
    record or '', '^(%d+) (%d+) %d+ %d+ %d+ (%d+) ()')
  local holds = weight and tonumber(expires) > now and lease ~= '0' and info <= NUMBERS
  if holds and weight == used then
    note_end(kind, token, record, 'released', now_ms)
    redis.call('DEL', lock, grant)
    redis.call('ZREM', index, name)
    return 1
  end
end

--> _holders.lua
--> _queue.lua

local state = load(token)

local function was_released()
  local lately = digits(now - MINUTE)
  for _, entry in ipairs(redis.pcall(
    'XREVRANGE', history .. 'ended', '+', lately, 'COUNT', kept)) do
    local whose, how, record = entry[2][6], entry[2][8], entry[2][12] -- see `note_end`
    local same = whose == token and how == 'released'
    if same and (read_holder(record) or {}).fence == fence then return true end
  end
  return false
end

if state.cooling then return 1 end
if not state.mine then
  if leave(token) then
    sweep(state)
    admit(state)
  end
  if fence ~= '0' then
    if kept ~= '0' and was_released() then return 1 end
    sweep(state) -- which may note how its own holding ended
    note_break(state.kind, token, '', 'lost', now)
  end
  forget_the_expired(lock_base())
  return 0
end
note_end(state.kind, token, state.mine.record, 'released', now_ms)

local acquired = math.min(tonumber(state.mine.acquired), now) -- the clock may have been set back
local stays = acquired + tonumber(at_least)
if stays > now then
  local before = state.mine.expires
  state.mine.lease, state.mine.expires = 0, stays
  rewrite(state, token, state.mine)
  redis.call('ZADD', index, digits(state.latest), name)
  redis.call('DEL', grant)
  if stays < before then shorten(state, before) end
  return 1
end

state.used = state.used - state.mine.weight
redis.call('HDEL', lock, 'h:' .. token)
redis.call('DEL', grant)
shorten(state, state.mine.expires)
hand_over(state)
return 1
