-- ARGV[1] id  [2] force: 1 or 0. Returns 1 if it was there, else 0.
local h = read()
if not h or h.id ~= ARGV[1] then return 0 end
if ARGV[2] == '1' then
  redis.call('SET', KEYS[2], 'broken', 'PX', h.ttl)
  redis.call('DEL', KEYS[1])
else
  redis.call('SET', KEYS[1], table.concat({h.id, 'b', h.ttl, h.since, h.rest}, ' '), 'KEEPTTL')
end
return 1
