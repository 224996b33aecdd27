-- Read a part of a stream of the history, or the rates.
--
-- KEYS   index, the prefix of the lock hashes, history
-- ARGV   stream ('ended', 'broken' or 'refused', or 'rates' for the rates), name ('' for all locks),
--        limit (entries to read), cursor ('+' for the latest entries), age (ms: of the oldest events
--        to return; '' for all), with_metadata ('1' or '0'), MAX_EVENTS
--
-- Reply  JSON: next cursor ('' at the end), { event, ... }, length of the stream, time of its
--        oldest event (ms, or ''). The latest event is first, and each event is
--        { field, value, ... } as stored.
--        Rates: now (ms), { field, value, ... } as stored.
--
-- Also removes expired locks.

--> _common.lua

local index, locks, history = unpack(KEYS)
local stream, name, limit, cursor, age, with_metadata = unpack(ARGV)
limit = tonumber(limit)

remove_expired_locks(index, locks, history)

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

-- Return the time of an event, which the streams have at different places. An entry may have been
-- added later.
local function time_of(event)
  for i = 1, #event, 2 do
    if event[i] == 'at' then return event[i + 1] end
  end
end

local since = age ~= '' and now - age
local entries = read('XREVRANGE', history .. stream, cursor, since or '-', 'COUNT', limit)
local events = {}
for _, entry in ipairs(entries) do
  local event = entry[2]
  if with_metadata == '0' then shorten_record(event) end
  local is_recent = not since or (parse_number(time_of(event)) or now) >= since
  if is_recent and (name == '' or event[NAME] == name) then events[#events + 1] = event end
  cursor = '(' .. entry[1]
end
local oldest = read('XRANGE', history .. stream, '-', '+', 'COUNT', 1)[1]
local length = oldest and redis.call('XLEN', history .. stream) or 0
local oldest_at = oldest and time_of(oldest[2]) or ''
return cjson.encode({ #entries == limit and cursor or '', events, length, oldest_at })
