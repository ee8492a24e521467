-- ARGV[1]  id
-- ARGV[2]  1: by force, else 0
--
-- Returns 1 if it was there, else 0.
local h = read()
if not h or h.id ~= ARGV[1] then return 0 end
if ARGV[2] == '1' then
  redis.call('SET', KEYS[2], 'broken', 'PX', h.ttl)
  redis.call('DEL', KEYS[1])
else
  h.flag = 'b'
  write(h, 'KEEPTTL')
end
return 1
