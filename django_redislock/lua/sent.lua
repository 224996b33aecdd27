-- Remove a message that was sent, or that must not be sent.
--
-- KEYS   inboxes, history
-- ARGV   token, claim (of the caller, from store.lua or outbox.lua), MAX_EVENTS
--
-- Reply  1 if the message was removed. 0 if the claim is over: somebody else has taken the message,
--        or it was queued and granted again, and must be sent again.

--> _lock.lua
--> _messages.lua

local token, claim, inboxes = ARGV[1], ARGV[2], KEYS[1]
if redis.pcall('ZSCORE', outbox_key(inboxes, 'due'), token) ~= claim then return 0 end
redis.call('ZREM', outbox_key(inboxes, 'due'), token)
redis.call('HDEL', outbox_key(inboxes, 'arrivals'), token)
return redis.call('HDEL', outbox_key(inboxes, 'messages'), token)
