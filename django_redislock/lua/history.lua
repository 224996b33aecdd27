-- Read a part of a stream of the history of one bucket, or the rates.
--
-- KEYS   index, the prefix of the lock hashes, history
-- ARGV   stream ('ended', 'broken' or 'refused', or 'rates' for the rates), name ('' for all locks),
--        limit (entries to read), cursor ('+' for the latest entries), age (ms: read no older
--        entries; '' for all), with_metadata ('1' or '0'), MAX_EVENTS
--
-- Reply  JSON: next cursor ('' at the end), { event, ... }, length of the stream, time of its
--        oldest event (ms, or ''). The latest event is first, and each event is
--        { field, value, ... } as stored.
--        Rates: now (ms), { field, value, ... } as stored.
--
-- Also removes expired locks of the bucket.

--> _common.lua

local index, locks, history = unpack(KEYS)
local stream, name, limit, cursor, age, with_metadata = unpack(ARGV)
limit = tonumber(limit)

remove_expired_locks(
  index, locks, history, math.min(MAX_EXPIRED, math.max(limit, MAX_EXPIRED_BY_READER)))

if stream == 'rates' then
  return cjson.encode({ now_ms, read('HGETALL', history .. 'rates') })
end

-- Remove the metadata from the record of an event. To parse the JSON would take many times as long.
-- Quotes inside JSON texts are escaped, so they cannot look like the ends of the metadata.
local function shorten_record(event)
  local text = event[RECORD] or ''
  local start = string.find(text, ',"metadata":', 1, true)
  local rest = start and string.match(text, '^.*(,"renewed":.*)$', start)
  if rest then event[RECORD] = string.sub(text, 1, start - 1) .. rest end
end

local oldest_wanted = age == '' and '-' or now - age
local entries = read('XREVRANGE', history .. stream, cursor, oldest_wanted, 'COUNT', limit)
local events = {}
for _, entry in ipairs(entries) do
  local event = entry[2]
  if with_metadata == '0' then shorten_record(event) end
  if name == '' or event[NAME] == name then events[#events + 1] = event end
  cursor = '(' .. entry[1]
end
-- The streams have the time of an event at different places.
local oldest = read('XRANGE', history .. stream, '-', '+', 'COUNT', 1)[1]
local length, at = oldest and redis.call('XLEN', history .. stream) or 0, ''
for i, field in ipairs(oldest and oldest[2] or {}) do
  if i % 2 == 1 and field == 'at' then at = oldest[2][i + 1] end
end
return cjson.encode({ #entries == limit and cursor or '', events, length, at })
