-- Read a page of the held locks of some buckets, sorted by when their last lease expires.
--
-- KEYS   of each bucket: index, the prefixes of the lock and waiting hashes, history
-- ARGV   start, stop (the places of the locks, from 0; locks that expire together are sorted by
--        bucket and name), with_rows ('1', or '0': names only), MAX_EVENTS
--
-- Reply  JSON: now (ms), number of held locks, { name, expires (ms), ... }, { row, ... }
--
-- Also removes expired locks of the buckets.

--> _common.lua
--> _rows.lua

local start, stop, with_rows = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3] == '1'
local live = '(' .. now_ms
local total, buckets = 0, {}
for i = 1, #KEYS, 4 do
  local index, locks, waiting, history = unpack(KEYS, i, i + 3)
  remove_expired_locks(index, locks, history, math.floor(MAX_EXPIRED * 4 / #KEYS))
  total = total + redis.call('ZCOUNT', index, live, FENCE_ABOVE)
  buckets[#buckets + 1] = {
    index = index, locks = locks, waiting = waiting, chunk = {}, at = -1, place = -1,
  }
end

-- Go to the next lock of a bucket. Names are spread evenly over the buckets, so most buckets need
-- one chunk.
local chunk_size = math.ceil(stop / #buckets) + 2
local function advance(bucket)
  bucket.at, bucket.place = bucket.at + 2, bucket.place + 1
  if bucket.at > #bucket.chunk then
    bucket.at, bucket.chunk = 1, redis.call('ZRANGEBYSCORE', bucket.index, live, FENCE_ABOVE,
      'WITHSCORES', 'LIMIT', bucket.place, chunk_size)
  end
  bucket.expires = tonumber(bucket.chunk[bucket.at + 1] or math.huge)
end

local function next_bucket()
  local first = buckets[1]
  for i = 2, #buckets do
    if buckets[i].expires < first.expires then first = buckets[i] end
  end
  return first.expires < math.huge and first or nil
end

local found, names, locks, waiting = {}, {}, {}, {}
for i = 1, #buckets do advance(buckets[i]) end
for place = 0, stop - 1 do
  local bucket = next_bucket()
  if not bucket then break end
  if place >= start then
    local name = bucket.chunk[bucket.at]
    found[#found + 1], found[#found + 2] = name, bucket.chunk[bucket.at + 1]
    names[#names + 1], locks[#locks + 1] = name, bucket.locks .. name
    waiting[#waiting + 1] = bucket.waiting .. name
  end
  advance(bucket)
end
return cjson.encode({ now_ms, total, found, with_rows and rows(names, locks, waiting) or {} })
