-- Release a lock and hand it to the next waiter, or leave its queue.
--
-- KEYS   lock, queue, waiting, index, inboxes, history
-- ARGV   name, token, at_least (ms from the acquisition for which the lock stays unavailable),
--        fence (the fencing token of the hold, or 0: if the token does not hold the lock, this
--        hold is recorded as lost), how (how the hold ended: 'released', or 'killed': its holder is
--        dead), MAX_EVENTS
--
-- Reply  1  The token held the lock and no longer does. This is also the reply if the same hold ended
--           in this way in the last minute, as far as the history knows, so a retry is harmless.
--        0  The token did not hold the lock. It is not in the queue either.
--
-- Also records the end of the hold.

--> _lock.lua
--> _events.lua

local name, token, at_least, fence, how = unpack(ARGV)
local key, queue, _, index, _, history = unpack(KEYS)

-- Fast path: the token is the only holder, and nobody waits.
if how == 'released' and at_least == '0' and redis.call('EXISTS', queue) == 0 then
  local kind, used, record = unpack(redis.pcall('HMGET', key, 'kind', 'used', 'h:' .. token))
  local weight, expires, _, _, _, lease = parse_holder(record)
  if weight and expires > now and lease > 0 and weight == tonumber(used) then
    record_end(history, name, kind or '', token, record, how, now_ms)
    redis.call('DEL', key)
    redis.pcall('ZREM', index, name) -- an index of another type does not have it
    return 1
  end
end

--> _parsing.lua
--> _holders.lua
--> _expiry.lua
--> _queue.lua

local MAX_ENDED_EVENTS = 1000 -- in which to find a release that is repeated
local MAX_BROKEN_EVENTS = 100 -- in which to find the hold that was lost
local lock = load(lock_of_keys(name), token)

-- Return the id and the fields of an event of the hold that the caller believes in, or nil.
local function event_of_hold(stream, since, limit)
  for _, entry in ipairs(redis.pcall(
    'XREVRANGE', history .. stream, '+', since, 'COUNT', limit)) do
    local id, event = unpack(entry)
    if event[TOKEN] == token then
      local _, _, its_fence = parse_holder(event[RECORD])
      if its_fence == fence then return id, event end
    end
  end
end

-- Record that the hold was lost, unless it was force-released. If its lease expired, the event of
-- that becomes the event of the loss.
local function record_loss()
  remove_expired_holders(lock) -- which may record that this hold expired
  local id, event = event_of_hold('broken', '-', MAX_BROKEN_EVENTS)
  if not id then return record_break(lock, token, '', 'lost', now) end
  if event[HOW] == 'expired' and redis.pcall('XDEL', history .. 'broken', id) == 1 then
    local at = parse_number(event[AT]) or now
    record_end(history, name, event[KIND], token, event[RECORD], 'lost', at, 'broken')
    count(history, 'lost', at)
    count(history, 'expired', at, -1)
  end
end

if lock.in_cooldown then return 1 end
if not lock.holder then
  if leave_queue(lock, token) then
    remove_expired_holders(lock)
    grant_to_waiters(lock)
  end
  if fence ~= '0' and MAX_EVENTS ~= '0' then
    local stream = how == 'released' and 'ended' or 'broken'
    local _, event = event_of_hold(stream, now - MINUTE_MS, MAX_ENDED_EVENTS)
    if event and event[HOW] == how then return 1 end
    record_loss()
  end
  remove_expired_locks(index, string.sub(key, 1, #key - #name), history)
  return 0
end

local holder = lock.holder
if how == 'released' then
  record_end(history, name, lock.kind, token, holder.record, how, now_ms)
else
  record_break(lock, token, holder.record, how, now)
end

local acquired = math.min(tonumber(holder.acquired), now) -- the clock may have been set back
local cooldown_ends = acquired + tonumber(at_least)
if cooldown_ends > now then
  local before = holder.expires
  holder.lease, holder.expires, holder.acquired = 0, cooldown_ends, acquired
  update_holder(lock, token, holder)
  redis.call('HSET', key, 'released', math.max(lock.released, now))
  if cooldown_ends < before then refresh_expiry(lock, before) end
  return 1
end

lock.used = lock.used - holder.weight
redis.call('HDEL', key, 'h:' .. token)
refresh_expiry(lock, holder.expires)
hand_over(lock)
return 1
