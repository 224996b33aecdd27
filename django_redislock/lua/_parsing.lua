-- Parsing of what is stored, except for the records of holders.

-- Return a time, weight or duration in ms. Return nil for inf, nan and numbers that are too large.
local function parse_number(text)
  local number = tonumber(text)
  return number and number >= 0 and number < FENCE_ABOVE and number or nil
end

-- Return the reply to a command that reads. A key of another type counts as empty.
local function read(...)
  local reply = redis.pcall(...)
  if type(reply) ~= 'table' or not reply.err then return reply end
  if has_another_type(reply) then return {} end
  return redis.call(...)
end

-- Return the reply to a command, in a script that writes. A key of another type is deleted first.
local function use(command, key, ...)
  local reply = redis.pcall(command, key, ...)
  if type(reply) ~= 'table' or not reply.err then return reply end
  if has_another_type(reply) then redis.call('DEL', key) end
  return redis.call(command, key, ...)
end

local epochs = {}

-- Return the epoch of an inbox, or nil if its heartbeats have ended.
local function epoch_of(inbox)
  if epochs[inbox] == nil then
    local epoch = read('GET', inbox .. ':alive')
    epochs[inbox] = type(epoch) == 'string' and string.match(epoch, '^%d+$') or false
  end
  return epochs[inbox] or nil
end

-- Parse the record of a waiter. Return nil if it does not parse, or if the waiter is dead. The
-- caller of the script is alive.
local function parse_waiter(record, inboxes, is_caller)
  local inbox, ticket, capacity, weight, grant_ttl, lease, kind, payload_at =
    string.match(record or '', '^(%w+) (%d+) (%d+) (%d+) (%d+) (%d+) (%a+) ()')
  if not inbox or payload_at > MAX_NUMBERS_BYTES then return nil end
  local epoch = is_caller and '' or epoch_of(inboxes .. inbox)
  if not epoch then return nil end
  return {
    inbox = inboxes .. inbox, ticket = ticket, epoch = epoch, capacity = tonumber(capacity),
    weight = tonumber(weight), grant_ttl = tonumber(grant_ttl), lease = tonumber(lease),
    kind = kind, payload = string.sub(record, payload_at),
  }
end
