-- Read a part of the history of one bucket: the events of all locks, or of one lock.
--
-- KEYS   index, the prefix of the lock hashes, history
-- ARGV   name ('' for all locks), limit (entries to read from each stream; 0: only the rates),
--        is_brief ('1': without metadata, and with the length and the oldest event of each stream;
--        '0': with metadata only), then for each of the streams ended, broken and refused:
--          cursor ('+' for the latest entries, '' to skip the stream),
--          age (ms: read no older entries; '' for all entries), MAX_EVENTS
--
-- Reply  JSON: now (ms), ended, broken, refused, rates (as stored, if limit is 0)
--        Each stream is { has_more, cursor, { event, ... }, length, oldest event }. The latest
--        event is first, and each event is { field, value, ... } as stored.
--
-- Also removes expired locks of the bucket.

--> _common.lua

local index, locks, history = unpack(KEYS)
local name, limit, is_brief = ARGV[1], tonumber(ARGV[2]), ARGV[3] == '1'

-- One round trip may have a call for each bucket. Together they remove MAX_EXPIRED locks.
remove_expired_locks(
  index, locks, history, math.min(MAX_EXPIRED, math.max(limit, math.floor(MAX_EXPIRED / 16))))

-- Remove the metadata from the record of an event. To parse the JSON would take many times as long.
-- Quotes inside JSON texts are escaped, so they cannot look like the ends of the metadata.
local function shortened(event)
  local text = event[RECORD] or ''
  local start = string.find(text, ',"metadata":', 1, true)
  local rest = start and string.match(text, '^.*(,"renewed":.*)$', start)
  if rest then event[RECORD] = string.sub(text, 1, start - 1) .. rest end
  return event
end

-- Return the next events of a stream, with the arguments from `at` on.
local function events(stream, at)
  local cursor, age = ARGV[at], ARGV[at + 1]
  if cursor == '' or limit == 0 then return { 0, '', {}, 0, {} } end
  local oldest_id = age == '' and '-' or now - age
  local entries = read('XREVRANGE', history .. stream, cursor, oldest_id, 'COUNT', limit)
  local found = {}
  for _, entry in ipairs(entries) do
    local event = entry[2]
    if name == '' or event[NAME] == name then
      found[#found + 1] = is_brief and shortened(event) or event
    end
    cursor = '(' .. entry[1]
  end
  local length, oldest = 0, {}
  local first = is_brief and read('XRANGE', history .. stream, '-', '+', 'COUNT', 1)[1]
  if first then
    length, oldest = redis.call('XLEN', history .. stream), shortened(first[2])
  end
  return { #entries == limit and 1 or 0, cursor, found, length, oldest }
end

return cjson.encode({
  now_ms,
  events('ended', 4), events('broken', 6), events('refused', 8),
  limit == 0 and read('HGETALL', history .. 'rates') or {},
})
