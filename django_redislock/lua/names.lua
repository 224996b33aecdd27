-- Scan the names of the held locks of some buckets, in no order. Call it until each cursor is '0'.
-- A lock that is held during the whole scan is found at least once.
--
-- KEYS   of each bucket: index, the prefix of the lock hashes, history
-- ARGV   limit (about as many names of each bucket, up to 128 more), the cursor of each bucket
--        ('0' at first), MAX_EVENTS
--
-- Reply  JSON, of each bucket: next cursor, { name, expires (ms), ... }
--
-- Also removes expired locks of the buckets. The caller matches patterns, so that the time of a
-- call does not depend on a pattern.

--> _common.lua

local buckets = #KEYS / 3
local reply = {}
for i = 1, buckets do
  local index, locks, history = unpack(KEYS, i * 3 - 2, i * 3)
  remove_expired_locks(index, locks, history, math.floor(MAX_EXPIRED / buckets))
  local cursor, members = unpack(redis.call('ZSCAN', index, ARGV[i + 1], 'COUNT', ARGV[1]))
  local held = {}
  for j = 1, #members, 2 do
    local expires = parse_number(members[j + 1])
    if expires and expires > now then
      held[#held + 1], held[#held + 2] = members[j], members[j + 1]
    end
  end
  reply[i] = { cursor, held }
end
return cjson.encode(reply)
