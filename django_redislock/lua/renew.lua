-- Set new lease ends, for many locks of one bucket at once, each with its own verdict.
--
-- KEYS  index, the base of the lock keys, then the lock hash of each, history
-- ARGV  mode 'renew'  at least ms from now: never shorter than it is
--            'set'    ms from now
--       of each lock the token and the ms, in one text: "token ms token ms ..."; kept
--
-- Answer  for each lock the ms that are left now, or 0: not held by this token; in one text, as most
--         clients take many times as long to read a list

--> _lock.lua
--> _notes.lua
--> _holders.lua
--> _queue.lua

index = KEYS[1]
local locks, mode = KEYS[2], ARGV[1]
local verdicts = {}

for token, ms in string.gmatch(ARGV[2], '(%S+) (%S+)') do
  lock = KEYS[#verdicts + 3]
  name = string.sub(lock, #locks + 1)
  local verdict, state = 0, load(token)
  if state.mine then
    local before = state.mine.expires
    local least = mode == 'renew' and before or 0
    state.mine.expires = math.max(least, now + tonumber(ms))
    rewrite(state, token, state.mine)
    redis.call('ZADD', index, digits(state.latest), name)
    if state.mine.expires < before then shorten(state, before) end
    verdict = digits(state.mine.expires - now)
  end
  verdicts[#verdicts + 1] = verdict
end

forget_the_expired(locks)
return table.concat(verdicts, ' ')
