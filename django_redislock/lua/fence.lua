-- Give a greater fencing token to a holder, and let all that come after it have greater ones.
--
-- KEYS  index, lock, history
-- ARGV  name, token, fence, kept
--
-- Answer  1  done
--         0  it is not held by this token

--> _lock.lua
--> _notes.lua
--> _holders.lua
--> _queue.lua

index, lock = unpack(KEYS)
name = ARGV[1]
local token, fence = ARGV[2], ARGV[3]
local state = load(token)
if not state.mine then return 0 end

state.mine.fence = fence
rewrite(state, token, state.mine)
if last_fence() < tonumber(fence) then redis.call('ZADD', index, fence, '') end
return 1
