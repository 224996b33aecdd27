-- Counting events. These writes may fail (the server is full, or the user has no right to them):
-- the lock itself must still work.

-- Count an event in the minute of `at` (ms). Remove the counts that are older than an hour.
local function count(history, what, at)
  if MAX_EVENTS == '0' then return end
  local rates, minute = history .. 'rates', (at - at % MINUTE_MS) / MINUTE_MS
  if redis.pcall('HINCRBY', rates, minute .. ' ' .. what, 1) ~= 1 then return end
  for _, field in ipairs(redis.pcall('HKEYS', rates)) do
    if tonumber(string.match(field, '^%d+') or 0) <= minute - 60 then
      redis.call('HDEL', rates, field)
    end
  end
end
