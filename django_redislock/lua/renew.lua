-- Set new lease ends, for many locks of one bucket at once, each with its own verdict.
--
-- KEYS  index, then the lock hash of each, history
-- ARGV  for each lock: name, token, ms, mode; kept
--         mode 'renew'  at least ms from now: never shorter than it is
--              'set'    ms from now
--
-- Answer  for each lock the ms that are left now, or 0: not held by this token

--> _lock.lua
--> _notes.lua
--> _holders.lua
--> _queue.lua

index = KEYS[1]
local verdicts = {}

for i = 2, #KEYS - 1 do
  local at = (i - 2) * 4
  lock, name = KEYS[i], ARGV[at + 1]
  local token, ms, mode = ARGV[at + 2], tonumber(ARGV[at + 3]), ARGV[at + 4]
  local state = load(token)
  if state.mine then
    local least = mode == 'renew' and state.mine.expires or 0
    state.mine.expires = math.max(least, now + ms)
    rewrite(state, token, state.mine)
    redis.call('ZADD', index, digits(state.latest), name)
    verdicts[i - 1] = state.mine.expires - now
  else
    verdicts[i - 1] = 0
  end
end

forget_the_expired(lock_base())
return verdicts
