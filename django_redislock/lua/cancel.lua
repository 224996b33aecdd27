-- Take a stored message out of the queue of its lock.
--
-- KEYS   the prefixes of the lock hashes, queues and waiters, index, inboxes, history
-- ARGV   token, next step ('drop': it is removed, or 'send': it must be sent, without the lock), MAX_EVENTS
--
-- Reply  1, or 0 if the message is in no queue: it was sent, or it does not exist

--> _common.lua
--> _queue.lua

local token, next_step = unpack(ARGV)
local locks, queues, waitings, index, inboxes, history = unpack(KEYS)
local found = parse_message(use('HGET', outbox_key(inboxes, 'messages'), token))
if not found then return 0 end

local lock = load({
  name = found.name, key = locks .. found.name, queue = queues .. found.name,
  waiting = waitings .. found.name, index = index, inboxes = inboxes, history = history,
}, '')
local arrived = use('ZSCORE', lock.queue, token)
if not arrived then return 0 end
if next_step == 'send' then
  leave_for_outbox(lock, token, arrived)
else
  leave_queue(lock, token)
end
return 1
