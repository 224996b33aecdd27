-- Store the message of a task in the queue of a lock, or grant the lock to it at once.
--
-- KEYS   lock, queue, waiting, index, inboxes, history
-- ARGV   name, token, terms, payload (JSON), message, MAX_EVENTS. `terms` are separated by spaces:
--        kind, capacity, weight, lease (ms, of the queue lock), starts (ms from now, or 0), expires
--        (ms from now, or 0), sender (ms until somebody else sends a message that is granted at
--        once), most (how many messages the queue may have; 0: any number), arrival (us; 0: now)
--
-- Reply  "granted arrival claim"  The token holds the lock. The caller has to send the message, and
--                                 then to run sent.lua with the claim.
--        "queued arrival"   The message is stored. It is sent when it gets the lock.
--        "full"             Refused: the queue has too many messages.
--        "kind KIND"        Refused: the lock is in use as another lock type.
--
-- A repeated call stores nothing twice. Its reply may differ, because the message may have got the
-- lock in between. If the token held the lock already, the message may have been sent before. It
-- must be sent again: a worker that could not start it may have returned it.

--> _common.lua
--> _queue.lua

local name, token, terms, payload, text = unpack(ARGV)
local kind, capacity, weight, lease, starts, expires, sender, most, arrival =
  string.match(terms, '^(%a+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+)$')
local lock = load(lock_of_keys(name), token)
if arrival == '0' then arrival = now_us end

if use('ZSCORE', lock.queue, token) then return 'queued ' .. arrival end
remove_expired_holders(lock)
local used_as = lock.used > 0 and lock.kind or kind_of_queue(lock)
if used_as and used_as ~= kind then return 'kind ' .. used_as end
local request = { weight = tonumber(weight), payload = payload }
if not lock.holder and most ~= '0' and count_messages(lock) >= tonumber(most) then
  record_refusal(lock, request, now_us)
  return 'full'
end

local function moment(ms)
  return ms == '0' and '0' or string.format('%.0f', now + ms)
end

redis.call('HSET', outbox_key(lock.inboxes, 'messages'), token, table.concat({
  MESSAGE_FORMAT, capacity, weight, lease, moment(starts), moment(expires), kind, #name, #payload,
  name .. payload .. text }, ' '))
if lock.holder then
  use('HSET', outbox_key(lock.inboxes, 'arrivals'), token, arrival)
  return 'granted ' .. arrival .. ' ' .. claim_message(lock.inboxes, token, sender)
end

-- Grants follow the capacity of the latest caller.
if lock.used > 0 and lock.capacity ~= tonumber(capacity) then
  redis.call('HSET', lock.key, 'capacity', capacity)
end
lock.kind, lock.capacity = kind, tonumber(capacity)
redis.call('HINCRBY', outbox_key(lock.inboxes, 'counts'), name, 1)
use('ZADD', lock.queue, arrival, token)
redis.call('PERSIST', lock.queue)

-- A claim from before is over. Its caller would otherwise remove a message that waits again.
use('ZREM', outbox_key(lock.inboxes, 'due'), token)
grant_to_waiters(lock)
if use('ZSCORE', outbox_key(lock.inboxes, 'due'), token) then
  return 'granted ' .. arrival .. ' ' .. claim_message(lock.inboxes, token, sender)
end
plan_look(lock)
return 'queued ' .. arrival
