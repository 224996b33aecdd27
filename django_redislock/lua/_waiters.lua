-- Reading of the queue.

-- Return the first live waiters of a lock, each as { arrival (us), record }.
local function first_waiters(queue, waiting, inboxes, limit)
  local start, found = 0, {}
  repeat
    local members = read('ZRANGE', queue, start, start + limit - 1, 'WITHSCORES')
    for i = 1, #members, 2 do
      local record = unpack(read('HMGET', waiting, members[i]))
      if parse_waiter(record, inboxes) then found[#found + 1] = { members[i + 1], record } end
      if #found == limit then return found end
    end
    start = start + limit
  until #members < 2 * limit
  return found
end
