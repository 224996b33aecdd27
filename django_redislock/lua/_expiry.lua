-- Removing holders and locks whose leases have expired.

-- Record that a hold 'expired', or was 'forced' or 'killed', or, without a record, 'lost'.
local function record_break(lock, token, record, how, at, more)
  record_end(lock.history, lock.name, lock.kind, token, record, how, at, 'broken', more)
  count(lock.history, how, at)
end

-- Remove the holders whose lease has expired, and the lock if no holder is left. If a cooldown of a
-- hold that was acquired later than now is left, the clock was set back. The cooldown begins again,
-- so that it does not last longer by as much. A lease stays: its holder counts on it, and the clock
-- may be corrected.
local function remove_expired_holders(lock)
  local is_stored = lock.soonest > now
  if is_stored and lock.released <= now then return end
  lock.soonest, lock.latest, lock.used = math.huge, 0, 0
  local fields = use('HGETALL', lock.key)
  for i = 1, #fields, 2 do
    if string.sub(fields[i], 1, 2) == 'h:' then
      local weight, expires, fence, acquired, waited, lease, payload_at = parse_holder(fields[i + 1])
      if weight and lease == 0 and tonumber(acquired) > now then
        is_stored, expires = false, now + expires - acquired
        redis.call('HSET', lock.key, 'released', now_ms, fields[i], weight .. ' ' .. expires .. ' ' .. fence
          .. ' ' .. now_ms .. ' ' .. waited .. ' 0 ' .. string.sub(fields[i + 1], payload_at))
      end
      if weight and expires > now then
        lock.used = lock.used + weight
        lock.soonest = math.min(lock.soonest, expires)
        lock.latest = math.max(lock.latest, expires)
      else
        redis.call('HDEL', lock.key, fields[i])
        if weight and lease > 0 then
          record_break(lock, string.sub(fields[i], 3), fields[i + 1], 'expired', expires)
        end
      end
    end
  end
  if lock.used == 0 then
    redis.call('DEL', lock.key)
    use('ZREM', lock.index, lock.name)
  elseif not is_stored then
    redis.call('HSET', lock.key,
      'used', lock.used, 'soonest', lock.soonest, 'latest', lock.latest)
    use('ZADD', lock.index, lock.latest, lock.name)
    set_expiry(lock, true)
  end
end

-- Call this after a lease that would have expired at `before` ended or became shorter. If it was
-- the last to expire, read the others to find the last one now.
local function refresh_expiry(lock, before)
  if lock.used > 0 and lock.latest == before then lock.soonest = 0 end
  remove_expired_holders(lock)
end

local MAX_EXPIRED = 100 -- locks that one call removes, so that it does not keep the server busy

-- Remove locks whose last lease has expired, and record how they ended.
local function remove_expired_locks(index, locks, history)
  for _, name in ipairs(use(
    'ZRANGEBYSCORE', index, '-inf', now_ms, 'LIMIT', 0, MAX_EXPIRED)) do
    -- A server that accepts no writes keeps them, but must still list the other locks.
    local is_removed = redis.pcall('ZREM', index, name) == 1
    local lock = { name = name, key = locks .. name, index = index, history = history }
    if is_removed and load(lock, '').kind ~= '' then remove_expired_holders(lock) end
  end
end
