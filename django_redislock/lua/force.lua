-- Release a lock on behalf of one holder or of all holders, and hand it to the next waiters.
--
-- KEYS   lock, queue, waiting, index, inboxes, history
-- ARGV   name, field (of the holder in the lock hash, or without the random part that follows a
--        token that a caller chose, or '' for all holders. It is not a token, because another
--        program may have written a holder with an empty token. It can also be that of a stored
--        message in the queue), by, reason (for the history), MAX_EVENTS
--
-- Reply  the tokens of the holders that were removed, or of the stored message
--
-- Also records the ends of these holds.

--> _common.lua
--> _queue.lua

local name, chosen, by, reason = unpack(ARGV)
local lock = load(lock_of_keys(name), '')
remove_expired_holders(lock)

local removed, last_expires = {}, 0
local fields = use('HGETALL', lock.key)
for i = 1, #fields, 2 do
  local token = string.match(fields[i], '^h:(.*)$')
  local is_chosen = chosen == '' or chosen == fields[i]
    or chosen == string.match(fields[i], '^(h:[^:]*):')
  if token and is_chosen then
    redis.call('HDEL', lock.key, fields[i])
    local weight, expires, _, _, _, lease = parse_holder(fields[i + 1])
    if weight then
      lock.used = lock.used - weight
      last_expires = math.max(last_expires, expires)
      if lease > 0 then
        local more = { 'by', by, 'reason', reason }
        record_break(lock, token, fields[i + 1], 'forced', now, more)
      end
    end
    removed[#removed + 1] = token
  end
end

local queued = string.match(chosen, '^h:(.*)$')
if not removed[1] and queued and message_of(lock, queued) and leave_queue(lock, queued) then
  removed[1] = queued
end

if chosen == '' then lock.used = 0 end -- also weight without a holder
refresh_expiry(lock, last_expires)
hand_over(lock)
return removed
