-- The only parsers of what is stored.

local FENCE_ABOVE = 100000000000000 -- a number from here on is a fencing token (us), not a time (ms)
local MAX_NUMBERS_BYTES = 100 -- the numbers of a record are never longer

-- Return a time, weight or duration in ms. Return nil for inf, nan and numbers that are too large.
local function parse_number(text)
  local number = tonumber(text)
  return number and number >= 0 and number < FENCE_ABOVE and number or nil
end

-- Parse the record of a holder. Return nil if it does not parse. The lease may have expired.
local function parse_holder(record)
  local weight, expires, fence, acquired, waited, lease, info_at =
    string.match(record or '', '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+) ()')
  expires = tonumber(expires)
  if not weight or info_at > MAX_NUMBERS_BYTES or expires >= FENCE_ABOVE then return nil end
  return tonumber(weight), expires, fence, acquired, waited, tonumber(lease), info_at
end

-- Return the waiter of a record, or nil if there is none, or if it is dead.
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
