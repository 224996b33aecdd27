-- Remove messages that were sent, or that must not be sent.
--
-- KEYS   inboxes, history
-- ARGV   token, MAX_EVENTS
--
-- Reply  1 if the message was there, else 0

--> _lock.lua
--> _messages.lua

local token, inboxes = ARGV[1], KEYS[1]
redis.call('ZREM', outbox_key(inboxes, 'due'), token)
redis.call('HDEL', outbox_key(inboxes, 'arrivals'), token)
return redis.call('HDEL', outbox_key(inboxes, 'messages'), token)
