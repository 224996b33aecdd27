-- Hold a lock, or stand in its queue.
--
-- KEYS  lock, queue, waiting, index, grants, history
-- ARGV  kind, capacity, weight,
--       lease (ms), claim (ms: what a grant is worth until it is confirmed), name, token,
--       alive (ms until the caller asks again; 0: it does not wait),
--       predecessor ('' for none: the token whose holding, if it has one of the same
--       weight, this one takes over), info (JSON), kept
--
-- Answer  fence   held, with a full lease from now. Asking again with the same token answers
--                 the same: a repeated call is harmless, and it is how a waiter confirms its
--                 grant.
--         -fence  held, by taking over.
--         0       not held. Queued if alive > 0; else no longer in the queue.
--         kind    refused: the lock is of another one.

--> _lock.lua
--> _notes.lua

lock, queue, waiting, index, grants = unpack(KEYS)
name = ARGV[6]
local kind, capacity, weight, lease, token, info =
  ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[7], ARGV[10]

-- The usual case: nobody holds it or waits for it, and both scores of the index grow (2). The time
-- is then greater than every fencing token before it, and so the next one. One time in 64 is taken
-- for unusual, to forget what ran out: more locks than have come meanwhile.
local free = redis.call('EXISTS', lock, queue) == 0
local ends = now + lease .. ''
local usual = free and now_us % 64 > 0
if usual and redis.call('ZADD', index, 'GT', 'CH', ends, name, now_us, '') == 2 then
  redis.call('HSET', lock,
    'kind', kind, 'capacity', capacity, 'used', weight, 'soonest', ends, 'latest', ends,
    'h:' .. token,
    weight .. ' ' .. ends .. ' ' .. now_us .. ' ' .. now_ms .. ' 0 ' .. lease .. ' ' .. info)
  redis.call('PEXPIREAT', lock, kept ~= '0' and ends + HOUR or ends)
  count('acquired', now)
  return tonumber(now_us)
end

--> _holders.lua
--> _queue.lua

capacity, weight, lease = tonumber(capacity), tonumber(weight), tonumber(lease)
local claim, alive, predecessor = ARGV[5], tonumber(ARGV[8]), ARGV[9]

if free then
  local state = { kind = kind, capacity = capacity, used = 0, soonest = math.huge, latest = 0 }
  local fence = enter(state, token, now_us, weight, lease, now + lease, info)
  forget_the_expired(lock_base())
  return tonumber(fence)
end

local state = load(token)
if state.kind ~= kind then
  state.soonest = 0 -- the hash may outlive its last lease
  sweep(state)
  local taken_as = state.used > 0 and state.kind ~= '' and state.kind or kind_of_queue()
  if taken_as and taken_as ~= kind then return taken_as end
end
local last_capacity = state.capacity
state.kind, state.capacity = kind, capacity

if state.mine then
  state.mine.expires = math.max(state.mine.expires, now + lease)
  rewrite(state, token, state.mine)
  redis.call('ZADD', index, digits(state.latest), name)
  redis.call('DEL', grants .. token .. ':' .. name)
  return tonumber(state.mine.fence)
end

if state.cooling then return 0 end

sweep(state)
if predecessor ~= '' then
  local before = load(predecessor).mine
  if before and before.weight == weight then
    redis.call('HDEL', lock, 'h:' .. predecessor)
    redis.call('DEL', grants .. predecessor .. ':' .. name)
    leave(token)
    note_end(kind, predecessor, before.record, 'passed', now_ms)
    state.used = state.used - weight
    shorten(state, before.expires)
    return -enter(state, token, now_us, weight, lease, now + lease, info)
  end
end

-- Turns go by the capacity of who asked last. A full server may not take it: then by the old one.
if state.used > 0 and last_capacity ~= capacity then
  redis.pcall('HSET', lock, 'capacity', capacity)
end

local arrived = redis.call('ZSCORE', queue, token) or now_us
local function refuse()
  if leave(token) then admit(state) end -- whoever stands behind it may fit in where it did not
  note_refusal(kind, weight, arrived, info)
  return 0
end

local room = state.used + weight <= capacity
if alive == 0 and not room then return refuse() end

redis.call('ZADD', queue, 'NX', now_us, token)
redis.call('HSET', waiting, token, table.concat({
  digits(now + alive), weight, claim, lease, kind, info }, ' '))
if alive > 0 then
  redis.call('PEXPIRE', queue, alive)
  redis.call('PEXPIRE', waiting, alive)
end

local fence = admit(state, token)
if fence then return tonumber(fence) end
return alive == 0 and refuse() or 0
