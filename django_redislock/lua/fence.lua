-- Give a holder a larger fencing token. All later fencing tokens are larger.
--
-- KEYS   index, lock, history
-- ARGV   name, token, fence, MAX_EVENTS
--
-- Reply  1  done
--        0  the token does not hold the lock

--> _common.lua

local name, token, fence = unpack(ARGV)
local index, key, history = unpack(KEYS)
local lock = load({ name = name, key = key, index = index, history = history }, token)
if not lock.holder then return 0 end

lock.holder.fence = fence
update_holder(lock, token, lock.holder)
if last_fence(index) < tonumber(fence) then redis.call('ZADD', index, fence, '') end
return 1
