-- Read names of the held locks, in parts. Call it until the cursor is '0'.
--
-- KEYS   index, the prefix of the lock hashes, history
-- ARGV   order ('sorted': by when the last lease expires. 'scan': in no order. A lock that is held
--        the whole time is found at least once), limit (about as many names, up to 128 more in a
--        scan), cursor ('0' at first), MAX_EVENTS
--
-- Reply  JSON: next cursor, number of held locks, { { name, expires (ms) }, ... }
--
-- Also removes expired locks. The caller matches patterns, so that the time of a call
-- does not depend on a pattern.

--> _common.lua

local order, limit, cursor = unpack(ARGV)
local index, locks, history = unpack(KEYS)
remove_expired_locks(index, locks, history)

local after, before, members = '(' .. now_ms, '(' .. FENCE_ABOVE, nil
local total = redis.call('ZCOUNT', index, after, before)
if order == 'sorted' then
  -- The cursor is the last expiry, and how many names with it were read.
  local last, skipped = string.match(cursor, '(%S+) (%d+)')
  members = redis.call('ZRANGEBYSCORE', index, last or after, before, 'WITHSCORES',
    'LIMIT', skipped or 0, limit)
  local next_last = members[2 * limit]
  cursor = '0'
  if next_last then
    local same = next_last == last and tonumber(skipped) or 0
    for i = 2, #members, 2 do
      if members[i] == next_last then same = same + 1 end
    end
    cursor = next_last .. ' ' .. same
  end
else
  cursor, members = unpack(redis.call('ZSCAN', index, cursor, 'COUNT', limit))
end
local held = {}
for i = 1, #members, 2 do
  local expires = parse_number(members[i + 1])
  if expires and expires > now then held[#held + 1] = { members[i], members[i + 1] } end
end
return cjson.encode({ cursor, total, held })
