-- Letting somebody in.

local FENCE_BELOW = 9007199254740992 -- none is given from here on: a score that great does not grow

-- The last fencing token that was given in the bucket, 0 if none is known.
local function last_fence()
  local last = tonumber(redis.call('ZSCORE', index, '') or 0)
  return last < FENCE_BELOW and last or 0
end

-- Write a holder down, with what it changes for the lock.
local function write(state, token, holder)
  local expires = digits(holder.expires)
  local soonest, latest = expires, expires
  if state.used == holder.weight then
    state.soonest, state.latest = holder.expires, holder.expires
  else
    state.soonest = math.min(state.soonest, holder.expires)
    state.latest = math.max(state.latest, holder.expires)
    soonest, latest = digits(state.soonest), digits(state.latest)
  end
  redis.call('HSET', lock,
    'kind', state.kind, 'capacity', state.capacity, 'used', state.used,
    'soonest', soonest, 'latest', latest,
    'h:' .. token, holder.weight .. ' ' .. expires .. ' ' .. holder.fence .. ' ' .. holder.acquired
      .. ' ' .. holder.waited .. ' ' .. holder.lease .. ' ' .. holder.info)
  local stays = kept > 0 and holder.lease > 0 and HOUR or 0
  redis.call('PEXPIREAT', lock, digits(state.latest + stays))
end

-- Let `token` in, who came at `arrived` (us). Answers its fencing token: above every one
-- before it, also when Redis lost its data (then by the clock).
local function enter(state, token, arrived, weight, lease, expires, info)
  local fence = digits(math.max(now_us, last_fence() + 1))
  state.used = state.used + weight
  write(state, token, {
    weight = weight, expires = expires, fence = fence, acquired = digits(now),
    waited = digits(math.max(0, math.floor((now_us - arrived) / 1000))), lease = lease, info = info,
  })
  redis.call('ZADD', index, digits(state.latest), name, fence, '')
  if kept > 0 then count('acquired', now) end
  return fence
end
