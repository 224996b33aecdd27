-- Acquire a lock, or join its queue.
--
-- KEYS   lock, queue, waiting, index, inboxes, history
-- ARGV   name, token, terms, payload (JSON), MAX_EVENTS. `terms` are separated by spaces, because
--        each argument costs more than to parse a term: kind, capacity, weight, lease (ms),
--        grant_ttl (ms for which a grant lasts until it is confirmed), heartbeat (ms for which the
--        inbox counts as alive; 0: the caller does not wait), inbox, ticket, epoch (of the inbox),
--        predecessor (a token or '': if it holds the lock with the same weight, this call takes
--        its hold over)
--
-- Reply  fence   held, with a full lease from now on. A repeated call replies the same. This makes
--                retries harmless, and a waiter confirms its grant this way.
--        -fence  held: the hold of the predecessor was taken over. A repeated call with a
--                predecessor replies the same in any case, so it does not tell who held the lock.
--        0       not held. The caller is queued if `heartbeat` is not 0, else it is not.
--        kind    refused: the lock is in use as another lock type.
--
-- Also records a refusal, a takeover and expired holds, and makes waiters holders that now fit in.

--> _lock.lua
--> _events.lua

local name, token, terms, payload = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local kind, capacity, weight, lease, others_at =
  string.match(terms, '^(%a+) (%d+) (%d+) (%d+) ()')
local key, queue, index, history = KEYS[1], KEYS[2], KEYS[4], KEYS[6] -- faster than unpack()

-- Fast path: the lock is free, nobody waits, and both scores in the index grow (ZADD replies 2).
-- Then the time is larger than every fencing token, so it is the next one. One call in 64 takes the
-- slow path to remove expired locks, up to 100: more than were acquired since. The slow path also
-- deals with an index of another type.
local existing = redis.call('EXISTS', key, queue)
local is_free = existing == 0
local expires = now + lease .. ''
local is_fast = is_free and now_us % 64 > 0
if is_fast and redis.pcall('ZADD', index, 'GT', 'CH', expires, name, now_us, '') == 2 then
  redis.call('HSET', key,
    'kind', kind, 'capacity', capacity, 'used', weight, 'soonest', expires, 'latest', expires,
    'h:' .. token,
    weight .. ' ' .. expires .. ' ' .. now_us .. ' ' .. now_ms .. ' 0 ' .. lease .. ' '
      .. payload)
  redis.call('PEXPIREAT', key, MAX_EVENTS ~= '0' and expires + HOUR_MS or expires)
  count(history, 'acquired', now)
  return tonumber(now_us)
end

--> _parsing.lua
--> _holders.lua
--> _expiry.lua
--> _queue.lua

local grant_ttl, heartbeat, inbox, ticket, epoch, predecessor =
  string.match(terms, '^(%d+) (%d+) (%w+) (%d+) (%d+) (.*)$', others_at)
capacity, heartbeat = tonumber(capacity), tonumber(heartbeat)
local request = { weight = tonumber(weight), lease = tonumber(lease), payload = payload }
local full_lease = now + lease
local lock = load(lock_of_keys(name), token)

if is_free then
  lock.kind, lock.capacity = kind, capacity
  -- First the write that a full server denies: after another write it would allow it.
  local fence = add_holder(lock, token, request, now_us, full_lease)
  remove_expired_locks(index, string.sub(key, 1, #key - #name), history)
  return tonumber(fence)
end
if lock.kind ~= kind then
  lock.soonest = 0 -- the hash may be older than its last lease
  remove_expired_holders(lock)
  local used_as = lock.used > 0 and lock.kind ~= '' and lock.kind or kind_of_queue(lock)
  if used_as and used_as ~= kind then return used_as end
end
local last_capacity = lock.capacity
lock.kind, lock.capacity = kind, capacity

if lock.holder then
  lock.holder.expires = math.max(lock.holder.expires, full_lease)
  update_holder(lock, token, lock.holder)
  local fence = tonumber(lock.holder.fence)
  return predecessor ~= '' and -fence or fence
end

remove_expired_holders(lock)
if lock.in_cooldown then return 0 end -- the token was released, so this request is late
if predecessor ~= '' then
  local previous = redis.call('HGET', key, 'h:' .. predecessor)
  local its_weight, its_expires, _, _, _, its_lease = parse_holder(previous)
  if its_weight == request.weight and its_lease > 0 then
    redis.call('HDEL', key, 'h:' .. predecessor)
    local has_queue = existing == 2
    local arrived = has_queue and use('ZSCORE', queue, token)
    if arrived and message_of(lock, token) then
      leave_for_outbox(lock, token, arrived) -- a retry that began before its sender had ended
    elseif arrived then
      leave_queue(lock, token)
    end
    record_end(history, name, kind, predecessor, previous, 'passed', now_ms)
    lock.used = lock.used - its_weight
    refresh_expiry(lock, its_expires)
    local fence = add_holder(lock, token, request, now_us, full_lease)
    if has_queue and count_messages(lock) > 0 then plan_look(lock) end
    return -fence
  end
end

-- Grants follow the capacity of the latest caller. If the server is full, the old one stays.
if lock.used > 0 and last_capacity ~= capacity then
  redis.pcall('HSET', key, 'capacity', capacity)
end

local arrived = use('ZSCORE', queue, token) or now_us
local function refuse()
  if leave_queue(lock, token) then grant_to_waiters(lock) end -- those behind it may fit in
  record_refusal(lock, request, arrived)
  return 0
end

local is_room = lock.used + request.weight <= capacity
if is_room and redis.call('EXISTS', queue) == 0 then -- fast path: no need to join the queue
  return tonumber(add_holder(lock, token, request, now_us, full_lease))
end
if heartbeat == 0 and not is_room then return refuse() end

use('ZADD', queue, 'NX', now_us, token)
use('HSET', lock.waiting, token, table.concat({
  inbox, ticket, capacity, weight, grant_ttl, lease, kind, payload }, ' '))
if heartbeat > 0 then
  local alive = lock.inboxes .. inbox .. ':alive'
  redis.call('SET', alive, epoch, 'PX', heartbeat)
  epochs[lock.inboxes .. inbox] = epoch
  keep_queue(lock, heartbeat)
end

local fence = grant_to_waiters(lock, token)
if fence then return tonumber(fence) end
return heartbeat == 0 and refuse() or 0
