-- Reading of the queue. Needs _messages.lua.

-- Return the record that a waiter with this stored message would have, or nil.
local function record_of_message(message)
  if not message then return nil end
  return table.concat({
    'outbox', 0, message.capacity, message.weight, 0, message.lease, message.kind,
    message.payload }, ' ')
end

-- Return the first live waiters of a lock, each as { arrival (us), record, token }. The token is ''
-- unless the waiter is a stored message.
local function first_waiters(queue, waiting, inboxes, limit)
  local start, found = 0, {}
  repeat
    local members = read('ZRANGE', queue, start, start + limit - 1, 'WITHSCORES')
    for i = 1, #members, 2 do
      local record = unpack(read('HMGET', waiting, members[i]))
      if not record then
        local stored = unpack(read('HMGET', outbox_key(inboxes, 'messages'), members[i]))
        record = record_of_message(parse_message(stored))
        if record then found[#found + 1] = { members[i + 1], record, members[i] } end
      elseif parse_waiter(record, inboxes) then
        found[#found + 1] = { members[i + 1], record, '' }
      end
      if #found == limit then return found end
    end
    start = start + limit
  until #members < 2 * limit
  return found
end
