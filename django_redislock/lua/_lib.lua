-- Put before every script: what a lock looks like in Redis, and how turns are given.
--
-- A lock is a weighted FIFO semaphore with leases. Its keys, all in one slot:
--
--   lock     hash, expires with the last lease:
--              kind, capacity  what it is, and the weight that fits in at once
--              used            the weight of those who hold
--              soonest         no lease ends before this (ms)
--              latest          no lease ends after this (ms)
--              h:<token>       a holder: "weight expires fence acquired waited lease info";
--                              a lease of 0: released, and kept for its cooldown
--   queue    sorted set: who waits, by the time of arrival (us)
--   waiting  hash, token -> "alive weight claim lease kind info"; a waiter shows life
--              by asking again before `alive` (ms)
--   grants   base of the lists `<grants><token>:<name>`, where a waiter sits in a
--              blocking pop; a grant pushed there is its fencing token
--   index    sorted set of the whole bucket: name -> `latest`; the member '' is the
--              last fencing token given in this bucket, and the only one that stays
--   history  base of what is told of the whole bucket's past, if any is kept:
--              ended    stream, a holding that ended as it should
--              broken   stream, one that ended otherwise: ordinary ends don't push it out
--              refused  stream, an acquisition that was not let in
--              rates    hash, "<minute> <what>" -> how often in that minute
--
-- Times are Redis's own, in ms since the epoch; `info` is JSON that is stored unread.
-- The last of KEYS is always the base of the history, the last of ARGV how many of the
-- latest events each stream keeps (0: there is no history). While one is kept, a lock
-- whose last lease ran out stays for an hour, so that somebody can note its end.
--
-- Others may write here too. What is not as these scripts write it counts as not there, and
-- keeps no other lock of the bucket from being renewed, released or told of.

local lock, queue, waiting, index, grants, name
local history, kept = KEYS[#KEYS], tonumber(ARGV[#ARGV])
local MINUTE, HOUR = 60000, 3600000
local FENCE_ABOVE = 100000000000000 -- scores of the index from here on are the fencing token (us)
local FENCE_BELOW = 9007199254740992 -- none is given from here on: a score that great does not grow
local NUMBERS = 100 -- characters that the numbers of a record take at most

local clock = redis.call('TIME')
local now_us = clock[1] * 1000000 + clock[2]
local now = math.floor(now_us / 1000)

local function digits(number)
  return string.format('%.0f', number)
end

-- What a command answers; an empty table where the key that it reads is of another type.
local function read(...)
  local answer = redis.pcall(...)
  if not answer.err then return answer end
  if string.find(answer.err, 'WRONGTYPE') then return {} end
  return redis.call(...)
end

local function read_holder(record)
  if not record then return nil end
  local weight, expires, fence, acquired, waited, lease, info =
    string.match(record, '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (.*)$')
  if not weight or #record - #info > NUMBERS then return nil end
  return {
    weight = tonumber(weight), expires = tonumber(expires), fence = fence,
    acquired = acquired, waited = waited, lease = tonumber(lease), info = info,
  }
end

local function holder_record(holder)
  return table.concat({
    holder.weight, digits(holder.expires), holder.fence, holder.acquired, holder.waited,
    holder.lease, holder.info,
  }, ' ')
end

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

-- One more of `what` in the minute of `at`; what is older than an hour goes.
local function count(what, at)
  local rates, minute = history .. 'rates', math.floor(at / 60000)
  if redis.pcall('HINCRBY', rates, digits(minute) .. ' ' .. what, 1) ~= 1 then return end
  for _, field in ipairs(redis.call('HKEYS', rates)) do
    local its_minute = tonumber(string.match(field, '^%d+') or 0)
    if its_minute <= minute - 60 then redis.call('HDEL', rates, field) end
  end
end

-- Write an event down. A server that is full or broken may not take it: that is no reason
-- for what happened not to happen.
local function remember(stream, ...)
  redis.pcall('XADD', history .. stream, 'MAXLEN', '~', kept, '*', 'name', name, ...)
end

-- A holding is over: 'released', 'passed' on, 'expired', 'forced', or 'lost' to a holder that
-- came to let go of it (who has no record then).
local function note_end(kind, token, record, how, at)
  if kept == 0 then return end
  local as_it_should = how == 'released' or how == 'passed'
  remember(as_it_should and 'ended' or 'broken',
    'kind', kind, 'token', token, 'how', how, 'at', digits(at), 'holder', record)
  if not as_it_should then count(how, at) end
end

-- Somebody was not let in, after having waited for so many ms.
local function note_refusal(kind, weight, waited, info)
  if kept == 0 then return end
  remember('refused',
    'kind', kind, 'weight', weight, 'at', digits(now), 'waited', digits(waited), 'info', info)
  count('refused', now)
end

-- The last fencing token that was given in the bucket, 0 if none is known.
local function last_fence()
  local last = tonumber(redis.call('ZSCORE', index, '') or 0)
  return last < FENCE_BELOW and last or 0
end

-- The lock as it stands, with `token`'s own holding if its lease is running.
local function load(token)
  local kind, capacity, used, soonest, latest, mine = unpack(redis.call(
    'HMGET', lock, 'kind', 'capacity', 'used', 'soonest', 'latest', 'h:' .. token))
  mine = read_holder(mine)
  local live = mine and mine.expires > now
  return {
    kind = kind, capacity = tonumber(capacity) or 0, used = tonumber(used) or 0,
    soonest = tonumber(soonest or math.huge) or 0, latest = tonumber(latest) or 0,
    mine = live and mine.lease > 0 and mine or nil,
    cooling = live and mine.lease == 0,
  }
end

-- Write a holder down, with what it changes for the lock.
local function write(state, token, holder)
  if state.used == holder.weight then
    state.soonest, state.latest = holder.expires, holder.expires
  else
    state.soonest = math.min(state.soonest, holder.expires)
    state.latest = math.max(state.latest, holder.expires)
  end
  redis.call('HSET', lock,
    'kind', state.kind, 'capacity', state.capacity, 'used', state.used,
    'soonest', digits(state.soonest), 'latest', digits(state.latest),
    'h:' .. token, holder_record(holder))
  local stays = kept > 0 and holder.lease > 0 and HOUR or 0
  redis.call('PEXPIREAT', lock, digits(state.latest + stays))
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
    weight = weight, expires = expires, fence = fence, acquired = digits(now),
    waited = digits(math.max(0, math.floor((now_us - arrived) / 1000))), lease = lease, info = info,
  })
  redis.call('ZADD', index, digits(state.latest), name, fence, '')
  if kept > 0 then count('acquired', now) end
  return fence
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
          note_end(state.kind, string.sub(fields[i], 3), fields[i + 1], 'expired', holder.expires)
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
  else -- it may outlive them, where a longer lease was released
    redis.call('DEL', lock)
    redis.call('ZREM', index, name)
  end
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
        redis.call('PEXPIRE', grant, waiter.claim)
      end
    end
    leave(token)
  end
  return fence
end

-- After somebody went: turns for those who wait, or nothing left behind.
local function hand_over(state)
  admit(state)
  if state.used == 0 then
    redis.call('DEL', lock)
    redis.call('ZREM', index, name)
  else
    redis.call('HSET', lock, 'used', state.used)
  end
end

-- What the keys of the bucket's locks begin with.
local function lock_base()
  return string.sub(lock, 1, #lock - #name)
end

-- Locks of the bucket whose last lease ran out: note how they ended, and let them go.
local function forget_the_expired(locks)
  for _, each in ipairs(redis.call(
    'ZRANGEBYSCORE', index, '-inf', digits(now), 'LIMIT', 0, 100)) do
    name, lock = each, locks .. each
    if #read('HMGET', lock, 'kind') > 0 then sweep(load('')) end
    redis.call('ZREM', index, each)
  end
end
