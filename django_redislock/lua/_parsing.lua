-- Parsing of what is stored, except for the records of holders.

-- Return a time, weight or duration in ms. Return nil for inf, nan and numbers that are too large.
local function parse_number(text)
  local number = tonumber(text)
  return number and number >= 0 and number < FENCE_ABOVE and number or nil
end

-- Parse the record of a waiter. Return nil if it does not parse, or if the waiter is dead.
local function parse_waiter(record)
  local heartbeat, weight, grant_ttl, lease, kind, info_at =
    string.match(record or '', '^(%d+) (%d+) (%d+) (%d+) (%a+) ()')
  if not heartbeat or info_at > MAX_NUMBERS_BYTES or tonumber(heartbeat) < now then return nil end
  return {
    weight = tonumber(weight), grant_ttl = tonumber(grant_ttl), lease = tonumber(lease),
    kind = kind, info = string.sub(record, info_at),
  }
end

-- Return the reply to a command that reads. A key of another type counts as empty.
local function read(...)
  local reply = redis.pcall(...)
  if not reply.err then return reply end
  if string.find(reply.err, 'WRONGTYPE') then return {} end
  return redis.call(...)
end
