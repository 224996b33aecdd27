-- Waiters, and handing a lock to them.

-- Return the lock of the KEYS of acquire, release and force.
local function lock_of_keys(name)
  return {
    name = name, key = KEYS[1], queue = KEYS[2], waiting = KEYS[3], index = KEYS[4],
    inboxes = KEYS[5], history = KEYS[6],
  }
end

-- Record that an acquisition was refused, of a caller that arrived at `arrived` (us).
local function record_refusal(lock, request, arrived)
  if MAX_EVENTS == '0' then return end
  local key = lock.history .. 'refused'
  local reply = redis.pcall('XADD', key, 'MAXLEN', '~', MAX_EVENTS, '*',
    'name', lock.name, 'kind', lock.kind, 'weight', request.weight, 'at', now_ms,
    'waited', waited_since(arrived), 'info', request.payload)
  if has_another_type(reply) then redis.pcall('DEL', key) end
  count(lock.history, 'refused', now)
end

-- Return the lock type that the first waiter wants, or nil if nobody waits.
local function kind_of_queue(lock)
  for _, token in ipairs(use('ZRANGE', lock.queue, 0, -1)) do
    local waiter = parse_waiter(use('HGET', lock.waiting, token), lock.inboxes)
    if waiter then return waiter.kind end
  end
end

-- Remove a token from the queue. Return whether it was there.
local function leave_queue(lock, token)
  if use('ZREM', lock.queue, token) == 0 then return false end
  use('HDEL', lock.waiting, token)
  return true
end

local MESSAGE_TTL_MS = 2000 -- no grant lasts longer before it is confirmed

-- Make the first waiters holders while they fit in. A waiter gets a short grant, which it has to
-- confirm. The `caller` is here, so it gets a full lease. Return its fencing token, if it got one.
-- A capacity of 0 means that the lock has no hash: then the first waiter decides.
local function grant_to_waiters(lock, caller)
  local fence
  while lock.capacity == 0 or lock.used < lock.capacity do
    local token, arrived = unpack(use('ZRANGE', lock.queue, 0, 0, 'WITHSCORES'))
    if not token then break end
    local record = use('HGET', lock.waiting, token)
    local waiter = parse_waiter(record, lock.inboxes, token == caller)
    if waiter then
      if lock.capacity == 0 then lock.kind, lock.capacity = waiter.kind, waiter.capacity end
      if lock.used + waiter.weight > lock.capacity then break end
      if token == caller then
        fence = add_holder(lock, token, waiter, arrived, now + waiter.lease)
      else
        local grant = waiter.ticket .. ' '
          .. add_holder(lock, token, waiter, arrived, now + waiter.grant_ttl)
          .. ' ' .. waiter.epoch
        use('RPUSH', waiter.inbox, grant)
        redis.call('PEXPIRE', waiter.inbox, MESSAGE_TTL_MS)
      end
    end
    leave_queue(lock, token)
  end
  return fence
end

-- Call this after a holder was removed. Make waiters holders, or remove the lock if it is free.
local function hand_over(lock)
  local used = lock.used
  grant_to_waiters(lock)
  if lock.used == 0 then
    redis.call('DEL', lock.key)
    use('ZREM', lock.index, lock.name)
  elseif lock.used == used then -- else add_holder() has stored it
    redis.call('HSET', lock.key, 'used', used)
  end
end
