-- ARGV[2]  ttl (ms)
--
-- Returns 1 if the request has the lock, else 0. It never takes the lock.
local m = mine()
if not m then return 0 end
extend(m, tonumber(ARGV[2]))
return 1
