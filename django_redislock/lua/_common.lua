-- The includes of a script without a fast path. It can change locks and their holders.

--> _lock.lua
--> _events.lua
--> _parsing.lua
--> _holders.lua
--> _expiry.lua
