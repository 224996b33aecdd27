-- Read the names of held locks of some buckets: a page of each bucket, in the order in which the
-- leases end. The caller matches patterns, so that a call takes the same time for any pattern.
--
-- KEYS  of each bucket: index, the base of the lock keys, history
-- ARGV  limit (names of each bucket), then of each bucket from and told of its page ('' for both:
--       the first page), kept
--
-- Answer  of each bucket {how many locks are held, from and told of the next page (from is '' if
--         there is none), {name, lease end (ms), name, lease end, ...}}

--> _lock.lua
--> _notes.lua
--> _holders.lua
--> _queue.lua
--> _index.lua

local LONGEST = 512 -- bytes of a name; a longer member of the index is not a lock
local limit = tonumber(ARGV[1])

-- The name and the lease end of each lock of a page.
local function names_of(page)
  local told = {}
  for i = 1, #page, 2 do
    if #page[i] <= LONGEST then
      told[#told + 1] = page[i]
      told[#told + 1] = page[i + 1]
    end
  end
  return told
end

local answer, buckets = {}, #KEYS / 3
for i = 1, buckets do
  index, history = KEYS[i * 3 - 2], KEYS[i * 3]
  forget_the_expired(KEYS[i * 3 - 1], math.floor(FORGOTTEN / buckets))
  local from, told = ARGV[i * 2], ARGV[i * 2 + 1]
  local live = '(' .. now_ms
  local page, next_from, next_told = read_page(from ~= '' and from or live, told, limit)
  local held = redis.call('ZCOUNT', index, live, FENCE_ABOVE)
  answer[i] = { held, next_from, next_told, names_of(page) }
end
return cjson.encode(answer)
