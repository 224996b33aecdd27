-- Reading and changing one lock and its holders.
--
-- A lock is a table { name, key, index, history }, with { queue, waiting, inboxes } where waiters
-- matter. load() adds { kind, capacity, used, soonest, latest, released, holder, in_cooldown }.

local MAX_FENCE = 9007199254740991 -- 2^53 - 1: a score from here on cannot grow

-- Return the ms since `arrived` (us), or 0 if the clock was set back.
local function waited_since(arrived)
  return math.max(0, math.floor((now_us - arrived) / 1000))
end

-- Read a lock, with the `holder` that has `token` and a lease that runs.
local function load(lock, token)
  local kind, capacity, used, soonest, latest, released, record = unpack(read(
    'HMGET', lock.key, 'kind', 'capacity', 'used', 'soonest', 'latest', 'released', 'h:' .. token))
  local weight, expires, fence, acquired, waited, lease, payload_at = parse_holder(record)
  local is_live = weight and expires > now
  lock.kind = kind or ''
  lock.capacity, lock.used = parse_number(capacity) or 0, parse_number(used) or 0
  lock.soonest, lock.latest = parse_number(soonest) or 0, parse_number(latest) or 0
  lock.released = parse_number(released) or 0
  lock.in_cooldown = is_live and lease == 0
  lock.holder = is_live and lease > 0 and {
    weight = weight, expires = expires, fence = fence, acquired = acquired, waited = waited,
    lease = lease, payload = string.sub(record, payload_at), record = record,
  } or nil
  return lock
end

-- Return the last fencing token, or 0 if it is not known.
local function last_fence(index)
  local last = tonumber(use('ZSCORE', index, '') or 0)
  return last < MAX_FENCE and last or 0
end

-- Let the hash expire with its last lease, or later if the expiry of a lease has to be recorded.
local function set_expiry(lock, has_lease)
  local extra = has_lease and MAX_EVENTS ~= '0' and HOUR_MS or 0
  redis.call('PEXPIREAT', lock.key, lock.latest + extra)
end

-- Store a holder whose weight is part of `lock.used`. `new_fence` is its fencing token, if that is
-- new.
local function save_holder(lock, token, holder, new_fence)
  local is_alone = lock.used == holder.weight
  lock.soonest = is_alone and holder.expires or math.min(lock.soonest, holder.expires)
  lock.latest = is_alone and holder.expires or math.max(lock.latest, holder.expires)
  redis.call('HSET', lock.key,
    'kind', lock.kind, 'capacity', lock.capacity, 'used', lock.used,
    'soonest', lock.soonest, 'latest', lock.latest,
    'h:' .. token, holder.weight .. ' ' .. holder.expires .. ' ' .. holder.fence
      .. ' ' .. holder.acquired .. ' ' .. holder.waited .. ' ' .. holder.lease
      .. ' ' .. holder.payload)
  set_expiry(lock, holder.lease > 0 or not is_alone)
  if new_fence then
    use('ZADD', lock.index, lock.latest, lock.name, new_fence, '')
  else
    use('ZADD', lock.index, lock.latest, lock.name)
  end
end

-- Store a change of a holder. A full server denies a script the first write if it adds data, but no
-- later write, so this begins with a write that adds none.
local function update_holder(lock, token, holder)
  redis.call('PERSIST', lock.key)
  save_holder(lock, token, holder)
end

-- Make `token` a holder. `request` has its weight, lease and payload, and `arrived` is in us.
-- Return the fencing token: larger than all earlier ones, even if the server lost its data, as long
-- as its clock was not set back.
local function add_holder(lock, token, request, arrived, expires)
  local fence = string.format('%.0f', math.max(now_us, last_fence(lock.index) + 1))
  lock.used = lock.used + request.weight
  save_holder(lock, token, {
    weight = request.weight, expires = expires, fence = fence, acquired = now_ms,
    waited = waited_since(arrived), lease = request.lease, payload = request.payload,
  }, fence)
  count(lock.history, 'acquired', now)
  return fence
end
