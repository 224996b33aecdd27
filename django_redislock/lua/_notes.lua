-- What is noted of the past, if any is kept. A server that is full or broken may not take it: that
-- is no reason for what happened not to happen.

-- One more of `what` in the minute of `at`; what is older than an hour goes.
local function count(what, at)
  if kept == '0' then return end
  local rates, minute = history .. 'rates', (at - at % MINUTE) / MINUTE
  if redis.pcall('HINCRBY', rates, minute .. ' ' .. what, 1) ~= 1 then return end
  for _, field in ipairs(redis.pcall('HKEYS', rates)) do
    local its_minute = tonumber(string.match(field, '^%d+') or 0)
    if its_minute <= minute - 60 then redis.call('HDEL', rates, field) end
  end
end

-- A holding is over: 'released' or 'passed' on, or otherwise, which is for another stream.
local function note_end(kind, token, record, how, at, stream)
  if kept == '0' then return end
  redis.pcall('XADD', history .. (stream or 'ended'), 'MAXLEN', '~', kept, '*', 'name', name,
    'kind', kind, 'token', token, 'how', how, 'at', at, 'holder', record)
end
