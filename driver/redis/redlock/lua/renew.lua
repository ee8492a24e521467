-- ARGV[1]  id
-- ARGV[2]  ttl (ms)
--
-- Returns 1 if it holds, else 0. It never creates anything.
local h = read()
if not h or h.id ~= ARGV[1] or h.flag == 'b' then return 0 end
return redis.call('PEXPIRE', KEYS[1], int(kept(ARGV[2])))
