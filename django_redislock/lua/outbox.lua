-- Take messages that must be sent: those that got their lock, and that nobody has sent yet.
--
-- KEYS   the prefixes of the lock hashes, queues and waiters, index, inboxes, history
-- ARGV   limit, retry (ms until somebody else may take the same message), MAX_EVENTS
--
-- Reply  { token, claim (which sent.lua needs), arrival (us), whether it was taken before (0 or 1),
--        message, ... }
--
-- Also removes expired leases of locks with stored messages, and grants these locks.

--> _common.lua
--> _queue.lua

local limit, retry = unpack(ARGV)
local locks, queues, waitings, index, inboxes, history = unpack(KEYS)

local function lock_of(name)
  return {
    name = name, key = locks .. name, queue = queues .. name, waiting = waitings .. name,
    index = index, inboxes = inboxes, history = history,
  }
end

local MAX_LOOKS = 100 -- locks in one call, so that it does not keep the server busy
for _, name in ipairs(use(
  'ZRANGEBYSCORE', outbox_key(inboxes, 'locks'), '-inf', now_ms, 'LIMIT', 0, MAX_LOOKS)) do
  local lock = load(lock_of(name), '')
  remove_expired_holders(lock)
  if lock.used == 0 then hand_over(lock) else grant_to_waiters(lock) end
  if count_messages(lock) > 0 then
    plan_look(lock)
  else
    use('ZREM', outbox_key(inboxes, 'locks'), name)
  end
end

local due, arrivals = outbox_key(inboxes, 'due'), outbox_key(inboxes, 'arrivals')
local reply = {}
for _, token in ipairs(use('ZRANGEBYSCORE', due, '-inf', now_ms, 'LIMIT', 0, limit)) do
  local message = parse_message(use('HGET', outbox_key(inboxes, 'messages'), token))
  if message then
    local arrived, again = string.match(use('HGET', arrivals, token) or '0', '^(%d+)(.*)$')
    redis.call('ZADD', due, now + retry, token)
    redis.call('HSET', arrivals, token, arrived .. ' again')
    -- The lease counts from now: nobody may have sent the message for a long time.
    local lock = load(lock_of(message.name), token)
    if lock.holder then
      lock.holder.expires = math.max(lock.holder.expires, now + message_lease(message))
      update_holder(lock, token, lock.holder)
    end
    reply[#reply + 1] = token
    reply[#reply + 1] = redis.call('ZSCORE', due, token)
    reply[#reply + 1] = arrived
    reply[#reply + 1] = again == '' and 0 or 1
    reply[#reply + 1] = message.message
  else
    redis.call('ZREM', due, token)
    redis.call('HDEL', arrivals, token)
  end
end
return reply
