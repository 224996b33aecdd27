-- Who holds a lock, and how one is let in.

local FENCE_ABOVE = 100000000000000 -- scores of the index from here on are the fencing token (us)
local FENCE_BELOW = 9007199254740991 -- none is given from here on: a score that great does not grow

local function digits(number)
  return string.format('%.0f', number)
end

-- The ms since `arrived` (us), none if the clock was set back meanwhile.
local function waited_since(arrived)
  return digits(math.max(0, math.floor((now_us - arrived) / 1000)))
end

-- What a command answers; an empty table where the key that it reads is of another type.
local function read(...)
  local answer = redis.pcall(...)
  if not answer.err then return answer end
  if string.find(answer.err, 'WRONGTYPE') then return {} end
  return redis.call(...)
end

-- Whether it is one in ms: not too great, which is a fencing token, and no `inf` nor `nan`.
local function is_time(text)
  local ms = tonumber(text)
  return ms and ms >= 0 and ms < FENCE_ABOVE
end

-- Of what is no such number, 0: then it is looked at who holds.
local function bounded(text)
  return is_time(text) and tonumber(text) or 0
end

local function read_holder(record)
  if not record then return nil end
  local weight, expires, fence, acquired, waited, lease, info =
    string.match(record, '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (.*)$')
  if not weight or #record - #info > NUMBERS or not is_time(expires) then return nil end
  return {
    weight = tonumber(weight), expires = tonumber(expires), fence = fence,
    acquired = acquired, waited = waited, lease = tonumber(lease), info = info,
    record = record,
  }
end

-- The lock as it stands, with `token`'s own holding if its lease is running.
local function load(token)
  local kind, capacity, used, soonest, latest, mine = unpack(read(
    'HMGET', lock, 'kind', 'capacity', 'used', 'soonest', 'latest', 'h:' .. token))
  mine = read_holder(mine)
  local live = mine and mine.expires > now
  return {
    kind = kind or '', capacity = bounded(capacity), used = bounded(used),
    soonest = soonest and bounded(soonest) or math.huge, latest = bounded(latest),
    mine = live and mine.lease > 0 and mine or nil,
    cooling = live and mine.lease == 0,
  }
end

-- The last fencing token that was given in the bucket, 0 if none is known.
local function last_fence()
  local last = tonumber(redis.call('ZSCORE', index, '') or 0)
  return last < FENCE_BELOW and last or 0
end

-- Let the lock go with its last lease, or later where somebody may have to note that one `runs_out`.
local function expire(state, runs_out)
  local stays = kept ~= '0' and runs_out and HOUR or 0
  redis.call('PEXPIREAT', lock, digits(state.latest + stays))
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
  expire(state, holder.lease > 0 or state.used > holder.weight)
end

-- Write down anew who holds it already. A full server lets a script add nothing before it has
-- changed something that adds nothing.
local function rewrite(state, token, holder)
  redis.call('PERSIST', lock)
  write(state, token, holder)
end

-- Let `token` in, who came at `arrived` (us). Answers its fencing token: above every one
-- before it, also when Redis lost its data (then by the clock).
local function enter(state, token, arrived, weight, lease, expires, info)
  local fence = digits(math.max(now_us, last_fence() + 1))
  state.used = state.used + weight
  write(state, token, {
    weight = weight, expires = expires, fence = fence, acquired = now_ms,
    waited = waited_since(arrived), lease = lease, info = info,
  })
  redis.call('ZADD', index, digits(state.latest), name, fence, '')
  count('acquired', now)
  return fence
end
