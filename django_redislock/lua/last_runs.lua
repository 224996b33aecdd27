-- Record the last runs of the entries of a schedule, unless a newer leader has begun.
--
-- KEYS   runs: a hash. `fence` is the largest fencing token of a leader so far, and `run:<entry>`
--        is the last run of an entry, in a form that only the clients know
-- ARGV   fence, with_runs ('1' to return all last runs), then the name of an entry and its last run
--        for each entry. An empty last run removes the entry
--
-- Reply  JSON: { field, value, ... } as stored, or 1 if with_runs is not '1'
--        0  a newer leader has begun. Nothing was changed

local runs = KEYS[1]
local fence, with_runs = ARGV[1], ARGV[2] -- unpack() takes some thousand arguments at most
local newest = tonumber(redis.call('HGET', runs, 'fence') or 0) or 0
if newest > tonumber(fence) then return 0 end

redis.call('HSET', runs, 'fence', fence)
for i = 3, #ARGV, 2 do
  local field, run = 'run:' .. ARGV[i], ARGV[i + 1]
  if run == '' then
    redis.call('HDEL', runs, field)
  else
    redis.call('HSET', runs, field, run)
  end
end
if with_runs ~= '1' then return 1 end
return cjson.encode(redis.call('HGETALL', runs))
