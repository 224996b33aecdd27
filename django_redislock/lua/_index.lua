-- Pages of a bucket's index, in the order in which leases end.
--
-- A page begins at the lease end `from`. `told` is "3 of 7": 3 of the 7 locks that end at `from`
-- were on an earlier page.

local function ending_at(score)
  return redis.call('ZCOUNT', index, score, score)
end

-- How many of the locks that end at `from` to skip. None if their number has changed: others may
-- be the first of them now.
local function to_skip(from, told)
  local skip, of = string.match(told, '^(%d+) of (%d+)$')
  return skip and ending_at(from) == tonumber(of) and tonumber(skip) or 0
end

-- A page as {name, lease end, ...}, then `from` and `told` of the next page: '' if there is none.
local function read_page(from, told, limit)
  local skip = to_skip(from, told)
  local page = redis.call(
    'ZRANGEBYSCORE', index, from, FENCE_ABOVE, 'WITHSCORES', 'LIMIT', skip, limit)
  if #page == 0 or #page < limit * 2 then return page, '', '' end
  local last, count = page[#page], 0
  for i = #page, 2, -2 do
    if page[i] ~= last then break end
    count = count + 1
  end
  if last == from then count = count + skip end
  return page, last, count .. ' of ' .. ending_at(last)
end
