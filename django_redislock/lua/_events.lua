-- Writing the history. These writes may fail (the server is full, or the user has no right to
-- them): the lock itself must still work.

local NAME, TOKEN, HOW, RECORD = 2, 6, 8, 12 -- places of these values in an event

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

-- Record that the hold of a record ended at `at` (ms): it was 'released' or 'passed' on.
local function record_end(history, name, kind, token, record, how, at, stream)
  if MAX_EVENTS == '0' then return end
  redis.pcall('XADD', history .. (stream or 'ended'), 'MAXLEN', '~', MAX_EVENTS, '*',
    'name', name, 'kind', kind, 'token', token, 'how', how, 'at', at, 'holder', record)
end
