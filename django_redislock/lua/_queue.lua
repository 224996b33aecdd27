-- Waiters, and handing a lock to them. A waiter can be a process, or a stored message.

--> _messages.lua
--> _outbox.lua

-- Return the lock of the KEYS of acquire, release and force.
local function lock_of_keys(name)
  return {
    name = name, key = KEYS[1], queue = KEYS[2], waiting = KEYS[3], index = KEYS[4],
    inboxes = KEYS[5], history = KEYS[6],
  }
end

-- Return the name and the id of the task in the payload of a holder, as JSON. Quotes inside JSON texts
-- are escaped, so they cannot look like the names of fields.
local function task_of(payload)
  return string.match(payload, ',"task_name":(.-),"task_id":(.-),"metadata":')
end

-- Return whether a task that would be skipped is a duplicate: whether another message of the same
-- task holds the lock, or somebody who is no task.
local function is_duplicate(lock, payload)
  local name, id = task_of(payload)
  if not name or name == 'null' then return true end
  local fields = use('HGETALL', lock.key)
  for i = 1, #fields, 2 do
    if string.sub(fields[i], 1, 2) == 'h:' then
      local its_name, its_id = task_of(fields[i + 1])
      if not its_name or its_name == 'null' or its_name == name and its_id ~= id then return true end
    end
  end
  return false
end

-- Record that an acquisition was refused, of a caller that arrived at `arrived` (us). Of a task that
-- is not skipped, because it is no duplicate, the record says so.
local function record_refusal(lock, request, arrived)
  if MAX_EVENTS == '0' then return end
  local key, payload = lock.history .. 'refused', request.payload
  local more = {}
  if string.find(payload, '"on_conflict":"skip"', 1, true) and not is_duplicate(lock, payload) then
    more = { 'duplicate', 0 }
  end
  local reply = redis.pcall('XADD', key, 'MAXLEN', '~', MAX_EVENTS, '*',
    'name', lock.name, 'kind', lock.kind, 'weight', request.weight, 'at', now_ms,
    'waited', waited_since(arrived), 'info', payload, unpack(more))
  if has_another_type(reply) then redis.pcall('DEL', key) end
  count(lock.history, 'refused', now)
end

local PART = 100 -- of the queue, which can be long

-- Return the lock type that the first waiter wants, or nil if nobody waits.
local function kind_of_queue(lock)
  local start = 0
  repeat
    local tokens = use('ZRANGE', lock.queue, start, start + PART - 1)
    for _, token in ipairs(tokens) do
      local waiter = parse_waiter(use('HGET', lock.waiting, token), lock.inboxes)
        or message_of(lock, token)
      if waiter then return waiter.kind end
    end
    start = start + PART
  until #tokens < PART
end

-- Remove a token from the queue. Return whether it was there.
local function leave_queue(lock, token)
  if use('ZREM', lock.queue, token) == 0 then return false end
  local is_process = use('HDEL', lock.waiting, token) == 1
  if not is_process and use('HDEL', outbox_key(lock.inboxes, 'messages'), token) == 1 then
    uncount_message(lock)
  end
  return true
end

-- Remove a stored message from the queue, and note that it must be sent.
local function leave_for_outbox(lock, token, arrived)
  redis.call('ZREM', lock.queue, token)
  use('ZADD', outbox_key(lock.inboxes, 'due'), now_ms, token)
  use('HSET', outbox_key(lock.inboxes, 'arrivals'), token, arrived)
  uncount_message(lock)
end

-- Make a stored message the holder, with the lease of a queue lock.
local function grant_message(lock, token, message, arrived)
  message.lease = message_lease(message)
  add_holder(lock, token, message, arrived, now + message.lease)
  leave_for_outbox(lock, token, arrived)
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
    local message = not record and message_of(lock, token)
    local waiter = message or parse_waiter(record, lock.inboxes, token == caller)
    if waiter then
      if lock.capacity == 0 then lock.kind, lock.capacity = waiter.kind, waiter.capacity end
      if lock.used + waiter.weight > lock.capacity then break end
      if message then
        grant_message(lock, token, message, arrived)
      elseif token == caller then
        fence = add_holder(lock, token, waiter, arrived, now + waiter.lease)
      else
        local grant = waiter.ticket .. ' '
          .. add_holder(lock, token, waiter, arrived, now + waiter.grant_ttl)
          .. ' ' .. waiter.epoch
        use('RPUSH', waiter.inbox, grant)
        redis.call('PEXPIRE', waiter.inbox, MESSAGE_TTL_MS)
      end
    end
    if not message then leave_queue(lock, token) end
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
