-- Stored messages: tasks that wait in the queue of a lock, without a process.
--
-- The keys are those of an inbox with the name "outbox". No process has an inbox of that name.
--
--   messages  hash, token -> "format capacity weight lease starts expires kind name_bytes
--             payload_bytes " name payload message. Times are in ms; `starts` and `expires` are 0 if
--             the message has none
--   due       sorted set, tokens of the messages that must be sent, by when somebody has to (ms).
--             Each of them has got the lock, or was revoked
--   arrivals  hash, token -> "arrival" (us), for the messages in `due`. " again" follows if somebody
--             has taken the message already
--   counts    hash, name -> the number of messages in the queue of that lock
--   locks     sorted set, names of the locks with such messages, by when to look whether a lease has
--             expired (ms)

local MESSAGE_FORMAT = '1'
local LOOK_MS = 60000 -- no lock with stored messages is left alone for longer

local function outbox_key(inboxes, part)
  return inboxes .. 'outbox:' .. part
end

-- Parse the record of a stored message. Return nil if it does not parse.
local function parse_message(record)
  local capacity, weight, lease, starts, expires, kind, name_bytes, payload_bytes, at = string.match(
    record or '', '^' .. MESSAGE_FORMAT
      .. ' (%d+) (%d+) (%d+) (%d+) (%d+) (%a+) (%d+) (%d+) ()')
  if not capacity or at > MAX_NUMBERS_BYTES then return nil end
  local payload_at = at + name_bytes
  local message_at = payload_at + payload_bytes
  return {
    capacity = tonumber(capacity), weight = tonumber(weight), lease = tonumber(lease),
    starts = tonumber(starts), expires = tonumber(expires), kind = kind,
    name = string.sub(record, at, payload_at - 1),
    payload = string.sub(record, payload_at, message_at - 1),
    message = string.sub(record, message_at),
  }
end

-- Return how long the queue lock of a message has to last (ms).
local function message_lease(message)
  local lease = math.max(0, message.starts - now) + message.lease
  if message.expires == 0 then return lease end
  return math.max(1000, math.min(lease, message.expires - now))
end
