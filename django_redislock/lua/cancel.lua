-- Remove a stored message from the queue of its lock.
--
-- KEYS   the prefixes of the lock hashes, queues and waiters, index, inboxes, history
-- ARGV   token, MAX_EVENTS
--
-- Reply  the message, or '' if it is in no queue: it was sent, or it does not exist

--> _common.lua
--> _queue.lua

local token = ARGV[1]
local locks, queues, waitings, index, inboxes, history = unpack(KEYS)
local found = parse_message(use('HGET', outbox_key(inboxes, 'messages'), token))
if not found then return '' end

local lock = load({
  name = found.name, key = locks .. found.name, queue = queues .. found.name,
  waiting = waitings .. found.name, index = index, inboxes = inboxes, history = history,
}, '')
if not leave_queue(lock, token) then return '' end
return found.message
