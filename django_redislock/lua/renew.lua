-- Set when leases expire, of many locks. Each lock has its own result.
--
-- KEYS   index, the prefix of the lock hashes, the lock hash of each, history
-- ARGV   mode ('renew': the lease lasts at least that many ms from now, and never becomes shorter;
--        'set': it lasts that many ms from now), requests ("token ms token ms ...", one for each
--        lock), MAX_EVENTS
--
-- Reply  "ms ms ...", one for each lock: how long the lease lasts from now, or 0 if the token does
--        not hold the lock. It is one text, because most clients parse a list more slowly.
--
-- Also removes expired locks.

--> _common.lua

local mode, requests = unpack(ARGV)
local index, locks, history = KEYS[1], KEYS[2], KEYS[#KEYS]

local function renew(key, token, ms)
  local name = string.sub(key, #locks + 1)
  local lock = load({ name = name, key = key, index = index, history = history }, token)
  local holder = lock.holder
  if not holder then return 0 end
  local before = holder.expires
  holder.expires = now + ms
  if mode == 'renew' then holder.expires = math.max(holder.expires, before) end
  update_holder(lock, token, holder)
  if holder.expires < before then refresh_expiry(lock, before) end
  return holder.expires - now
end

local results = {}
for token, ms in string.gmatch(requests, '(%S+) (%S+)') do
  results[#results + 1] = renew(KEYS[#results + 3], token, tonumber(ms))
end
remove_expired_locks(index, locks, history)
return table.concat(results, ' ')
