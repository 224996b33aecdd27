-- Those who wait, and how turns are given.

local function read_waiter(record)
  if not record then return nil end
  local alive, weight, claim, lease, kind, info =
    string.match(record, '^(%d+) (%d+) (%d+) (%d+) (%a+) (.*)$')
  if not alive or #record - #info > NUMBERS then return nil end
  return {
    alive = tonumber(alive), weight = tonumber(weight), claim = tonumber(claim),
    lease = tonumber(lease), kind = kind, info = info,
  }
end

-- Somebody was not let in, who came at `arrived` (us).
local function note_refusal(kind, weight, arrived, info)
  if kept == '0' then return end
  redis.pcall('XADD', history .. 'refused', 'MAXLEN', '~', kept, '*', 'name', name,
    'kind', kind, 'weight', weight, 'at', now_ms, 'waited', waited_since(arrived), 'info', info)
  count('refused', now)
end

-- A holding ended as it should not: it 'expired', or was 'forced' or 'lost' to a holder that came
-- to let go of it (who has no record then).
local function note_break(kind, token, record, how, at)
  note_end(kind, token, record, how, digits(at), 'broken')
  count(how, at)
end

-- Drop the holders whose lease ran out. Free of charge while none can have.
local function sweep(state)
  if state.soonest > now then return end
  state.soonest, state.latest, state.used = math.huge, 0, 0
  local fields = redis.call('HGETALL', lock)
  for i = 1, #fields, 2 do
    if string.sub(fields[i], 1, 2) == 'h:' then
      local holder = read_holder(fields[i + 1])
      if not holder or holder.expires <= now then
        redis.call('HDEL', lock, fields[i])
        if holder and holder.lease > 0 then
          note_break(state.kind, string.sub(fields[i], 3), fields[i + 1], 'expired', holder.expires)
        end
      else
        state.used = state.used + holder.weight
        state.soonest = math.min(state.soonest, holder.expires)
        state.latest = math.max(state.latest, holder.expires)
      end
    end
  end
  if state.used > 0 then
    redis.call('HSET', lock, 'used', state.used,
      'soonest', digits(state.soonest), 'latest', digits(state.latest))
    redis.call('ZADD', index, digits(state.latest), name)
    expire(state, true)
  else -- it outlives them, for this to be noted
    redis.call('DEL', lock)
    redis.call('ZREM', index, name)
  end
end

-- A lease that was to end at `before` is over, or is shorter now: if none ended later, it takes a
-- look at the others to know when the last of them does.
local function shorten(state, before)
  if state.used > 0 and state.latest == before then state.soonest = 0 end
  sweep(state)
end

-- What those who wait take the lock for: a lock whose last lease ran out has only them.
local function kind_of_queue()
  for _, token in ipairs(redis.call('ZRANGE', queue, 0, -1)) do
    local waiter = read_waiter(redis.call('HGET', waiting, token))
    if waiter and waiter.alive >= now then return waiter.kind end
  end
end

-- Answers whether it was in the queue.
local function leave(token)
  if redis.call('ZREM', queue, token) == 0 then return false end
  redis.call('HDEL', waiting, token)
  return true
end

-- Give turns to the head of the queue for as long as they fit. Dead waiters are
-- passed over. A grant is short until its waiter confirms it; `me` is here to take
-- a full lease at once. Answers `me`'s fencing token if it got in.
local function admit(state, me)
  local fence
  while state.used < state.capacity do
    local token, arrived = unpack(redis.call('ZRANGE', queue, 0, 0, 'WITHSCORES'))
    if not token then break end
    local waiter = read_waiter(redis.call('HGET', waiting, token))
    if waiter and waiter.alive >= now then
      if state.used + waiter.weight > state.capacity then break end
      if token == me then
        fence = enter(
          state, token, arrived, waiter.weight, waiter.lease, now + waiter.lease, waiter.info)
      else
        local granted = enter(
          state, token, arrived, waiter.weight, waiter.lease, now + waiter.claim, waiter.info)
        local grant = grants .. token .. ':' .. name
        redis.call('RPUSH', grant, granted)
        redis.call('PEXPIRE', grant, waiter.claim - 1) -- a key stays for the ms in which it ends
      end
    end
    leave(token)
  end
  return fence
end

-- After somebody went: turns for those who wait, or nothing left behind.
local function hand_over(state)
  local rest = state.used
  admit(state)
  if state.used == 0 then
    redis.call('DEL', lock)
    redis.call('ZREM', index, name)
  elseif state.used == rest then -- else it is written down with who was let in
    redis.call('HSET', lock, 'used', rest)
  end
end

-- What the keys of the bucket's locks begin with.
local function lock_base()
  return string.sub(lock, 1, #lock - #name)
end

local FORGOTTEN = 100 -- locks that one call lets go at most: more would hold up who waits for it

-- Locks of the bucket whose last lease ran out: note how they ended, and let them go. `name` and
-- `lock` are then those of the last one.
local function forget_the_expired(locks, most)
  for _, each in ipairs(redis.call(
    'ZRANGEBYSCORE', index, '-inf', now_ms, 'LIMIT', 0, most or FORGOTTEN)) do
    name, lock = each, locks .. each
    -- A server that takes no writes for now keeps them, and tells of the others all the same.
    local forgotten = redis.pcall('ZREM', index, each) == 1
    if forgotten and #read('HMGET', lock, 'kind') > 0 then sweep(load('')) end
  end
end
