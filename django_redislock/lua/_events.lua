-- The records of holders, and the history, which keeps them. Writes to the history may fail (the
-- server is full, or the user has no right to them): the lock itself must still work. A key of
-- another type is deleted, for the next event.

local NAME, KIND, TOKEN, HOW, AT, RECORD = 2, 4, 6, 8, 10, 12 -- places of the values in an event

-- Parse the record of a holder. Return nil if it does not parse. The lease may have expired.
local function parse_holder(record)
  local weight, expires, fence, acquired, waited, lease, payload_at =
    string.match(record or '', '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+) ()')
  expires = tonumber(expires)
  if not weight or payload_at > MAX_NUMBERS_BYTES or expires >= FENCE_ABOVE then return nil end
  return tonumber(weight), expires, fence, acquired, waited, tonumber(lease), payload_at
end

-- Record that a hold ended at `at` (ms): it was 'released' or 'passed' on. `more` are fields and
-- values that only some events have.
local function record_end(history, name, kind, token, record, how, at, stream, more)
  if MAX_EVENTS == '0' then return end
  local key = history .. (stream or 'ended')
  local reply = redis.pcall('XADD', key, 'MAXLEN', '~', MAX_EVENTS, '*',
    'name', name, 'kind', kind, 'token', token, 'how', how, 'at', at, 'holder', record,
    unpack(more or {}))
  if has_another_type(reply) then redis.pcall('DEL', key) end
end

-- Count an event in the minute of `at` (ms), or take it back (-1). Remove the counts that are older
-- than an hour.
local function count(history, what, at, change)
  if MAX_EVENTS == '0' then return end
  local rates, minute = history .. 'rates', (at - at % MINUTE_MS) / MINUTE_MS
  local reply = redis.pcall('HINCRBY', rates, minute .. ' ' .. what, change or 1)
  if has_another_type(reply) then redis.pcall('DEL', rates) end
  if reply ~= 1 then return end
  for _, field in ipairs(redis.pcall('HKEYS', rates)) do
    if tonumber(string.match(field, '^%d+') or 0) <= minute - 60 then
      redis.call('HDEL', rates, field)
    end
  end
end
