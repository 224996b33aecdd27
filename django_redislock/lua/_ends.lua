-- Noting how a holding ended.

-- Write an event down. A server that is full or broken may not take it: that is no reason
-- for what happened not to happen.
local function remember(stream, ...)
  redis.pcall('XADD', history .. stream, 'MAXLEN', '~', kept, '*', 'name', name, ...)
end

-- A holding is over: 'released', 'passed' on, 'expired', 'forced', or 'lost' to a holder that
-- came to let go of it (who has no record then).
local function note_end(kind, token, record, how, at)
  if kept == 0 then return end
  local as_it_should = how == 'released' or how == 'passed'
  remember(as_it_should and 'ended' or 'broken',
    'kind', kind, 'token', token, 'how', how, 'at', digits(at), 'holder', record)
  if not as_it_should then count(how, at) end
end
