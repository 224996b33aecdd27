-- What is told of a lock.

-- Whether it is as these scripts write it, for whom nothing takes two lines.
local function is_line(text)
  return not string.find(text, '\n', 1, true)
end

local function live_waiters(waiting)
  local count = 0
  for _, record in ipairs(read('HVALS', waiting)) do
    local waiter = read_waiter(record)
    if waiter and waiter.alive >= now then count = count + 1 end
  end
  return count
end

-- The lines: name, kind, capacity, waiters, and of each holder its token and its record; nil where
-- nobody holds it or waits for it. One text, as most clients take many times as long to read a list.
local function row(name, lock, waiting)
  local told = { name, '', '0', waiting and live_waiters(waiting) or 0 }
  local fields = read('HGETALL', lock)
  for i = 1, #fields, 2 do
    local field, value = fields[i], fields[i + 1]
    if field == 'kind' then
      told[2] = value
    elseif field == 'capacity' then
      told[3] = value
    elseif string.find(field, 'h:', 1, true) == 1 and is_line(field) and is_line(value) then
      -- As `read_holder` does, without its table.
      local expires, info_at = string.match(value, '^%d+ (%d+) %d+ %d+ %d+ %d+ ()')
      if expires and tonumber(expires) > now and info_at <= NUMBERS + 1 then
        told[#told + 1] = string.sub(field, 3)
        told[#told + 1] = value
      end
    end
  end
  if #told == 4 and told[4] == 0 then return nil end
  return table.concat(told, '\n')
end
