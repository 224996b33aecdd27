-- Keep the waiters of an inbox alive, and make waiters holders that fit in since a lease expired or
-- the waiter before them died.
--
-- KEYS   index, inboxes, the prefix of the lock hashes, then lock, queue, waiting of each lock,
--        history
-- ARGV   inbox, epoch, heartbeat (ms for which the inbox counts as alive), tokens to look for in the
--        queue of each lock ("token token ..."), MAX_EVENTS
--
-- Reply  "token token ...": those that are not in the queue. They got a grant, or Redis lost them.

--> _common.lua
--> _queue.lua

local inbox, epoch, heartbeat = unpack(ARGV)
local index, inboxes, locks, history = KEYS[1], KEYS[2], KEYS[3], KEYS[#KEYS]
local alive = inboxes .. inbox .. ':alive'

redis.call('PEXPIRE', alive, heartbeat) -- a full server denies SET as the first write
redis.call('SET', alive, epoch, 'PX', heartbeat)

local missing = {}
for i = 4, #KEYS - 1, 3 do
  local lock = load({
    name = string.sub(KEYS[i], #locks + 1), key = KEYS[i], queue = KEYS[i + 1],
    waiting = KEYS[i + 2], index = index, inboxes = inboxes, history = history,
  }, '')
  keep_queue(lock, heartbeat)
  local tokens = {}
  for token in string.gmatch(ARGV[3 + (i - 1) / 3], '%S+') do tokens[#tokens + 1] = token end
  local arrivals = #tokens > 0 and use('ZMSCORE', lock.queue, unpack(tokens)) or {}
  for j = 1, #tokens do
    if not arrivals[j] then missing[#missing + 1] = tokens[j] end
  end
  remove_expired_holders(lock)
  if lock.used == 0 then hand_over(lock) else grant_to_waiters(lock) end
end
return table.concat(missing, ' ')
