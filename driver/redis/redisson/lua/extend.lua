-- ARGV[2]  ttl (ms)
--
-- Returns 1 if the request has the lock, else 0. It never takes the lock.
if not mine() then return 0 end
extend(ARGV[2])
return 1
