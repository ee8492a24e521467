-- ARGV[1]  id
-- ARGV[2]  ttl (ms) of the tombstone to leave, or 0
--
-- Returns 1 if it was there and not broken, else 0.
local h = read()
if tonumber(ARGV[2]) > 0 then redis.call('SET', KEYS[2], 'released', 'PX', ARGV[2]) end
if not h or h.id ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[1])
return h.flag == 'b' and 0 or 1
