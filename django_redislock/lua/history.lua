-- Read a part of the history of one bucket: events of all its locks, or of one lock.
--
-- KEYS  index, the base of the lock keys, history
-- ARGV  name ('' for all), count (entries to read of each stream; 0: the rates alone),
--       brief ('1': without metadata, and with how far back each stream goes; '0'),
--       then for each of the streams ended, broken and refused:
--         before (where to go on: '+' for the latest, '' to leave this stream out),
--         age (ms: no older entries are read; '' for all), kept
--
-- Answer  now (ms), ended, broken, refused, rates (a flat hash, if count is 0, else empty)
--         Each stream is {more, before, {event, ...}, length, oldest}. `more` is 1 if there may be
--         older entries, which begin at `before`. Events are as they are in the stream, the latest
--         first, each {field, value, ...}. If brief, `length` is the number of all entries and
--         `oldest` the first of them; else they are 0 and empty.

--> _lock.lua
--> _notes.lua
--> _holders.lua
--> _queue.lua

index = KEYS[1]
local wanted, count, is_brief = ARGV[1], tonumber(ARGV[2]), ARGV[3] == '1'

-- One round trip may have a call for each bucket, which share the work.
forget_the_expired(KEYS[2], math.min(FORGOTTEN, math.max(count, math.floor(FORGOTTEN / 16))))

-- Cut the metadata out of a record, or of the info of a refusal. To parse the JSON would take many
-- times as long. Text in it has no bare quotes, so no other place looks like this.
local function brief(fields)
  local text = fields[12] or ''
  local start = string.find(text, ',"metadata":', 1, true)
  local rest = start and string.match(text, '^.*(,"renewed":.*)$', start)
  if rest then fields[12] = string.sub(text, 1, start - 1) .. rest end
  return fields
end

local function events(stream, before, age)
  if before == '' or count == 0 then return { 0, '', {}, 0, {} } end
  local since = age == '' and '-' or digits(now - tonumber(age))
  local entries = read('XREVRANGE', history .. stream, before, since, 'COUNT', count)
  local found = {}
  for _, entry in ipairs(entries) do
    local fields = entry[2]
    if wanted == '' or fields[2] == wanted then
      found[#found + 1] = is_brief and brief(fields) or fields
    end
    before = '(' .. entry[1]
  end
  local length, oldest = 0, {}
  if is_brief then
    length = redis.pcall('XLEN', history .. stream)
    oldest = redis.pcall('XRANGE', history .. stream, '-', '+', 'COUNT', 1)
  end
  return {
    #entries == count and 1 or 0, before, found,
    type(length) == 'number' and length or 0,
    oldest[1] and brief(oldest[1][2]) or {},
  }
end

return cjson.encode({
  now_ms,
  events('ended', ARGV[4], ARGV[5]),
  events('broken', ARGV[6], ARGV[7]),
  events('refused', ARGV[8], ARGV[9]),
  count == 0 and read('HGETALL', history .. 'rates') or {},
})
