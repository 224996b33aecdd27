-- Changing the stored messages of a lock. Needs _messages.lua.

-- Return the message with a token, or nil.
local function message_of(lock, token)
  return parse_message(use('HGET', outbox_key(lock.inboxes, 'messages'), token))
end

-- Have a message sent by somebody else after `wait` ms. Return the claim of the caller, who sends it
-- now: that time, to the microsecond, which no other call has.
local function claim_message(inboxes, token, wait)
  local due = outbox_key(inboxes, 'due')
  use('ZADD', due, (now + wait) .. '.' .. string.sub(now_us, -3), token)
  return redis.call('ZSCORE', due, token)
end

local function count_messages(lock)
  return tonumber(use('HGET', outbox_key(lock.inboxes, 'counts'), lock.name) or 0)
end

-- Note when somebody has to look whether a lease of the lock has expired.
local function plan_look(lock)
  local at = lock.used > 0 and math.min(lock.soonest, now + LOOK_MS) or now
  use('ZADD', outbox_key(lock.inboxes, 'locks'), at, lock.name)
end

local PROCESSES_TTL_MS = 2000 -- longer than a waiter counts as alive without a heartbeat

-- Note that a message has left the queue. After the last one, the heartbeats of processes keep it.
local function uncount_message(lock)
  local counts = outbox_key(lock.inboxes, 'counts')
  if use('HINCRBY', counts, lock.name, -1) > 0 then return end
  redis.call('HDEL', counts, lock.name)
  use('ZREM', outbox_key(lock.inboxes, 'locks'), lock.name)
  redis.call('PEXPIRE', lock.queue, PROCESSES_TTL_MS)
end

-- Keep the queue as long as its waiters, or for ever if messages are in it.
local function keep_queue(lock, heartbeat)
  if count_messages(lock) > 0 then
    redis.call('PERSIST', lock.queue)
  else
    redis.call('PEXPIRE', lock.queue, heartbeat)
  end
  redis.call('PEXPIRE', lock.waiting, heartbeat)
end
