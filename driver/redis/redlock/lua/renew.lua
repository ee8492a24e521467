-- ARGV[1]  id
-- ARGV[2]  ttl (ms)
--
-- Returns 1 if it holds, else 0. It never creates anything, and changes no other member.
local m = find(ARGV[1])
if m and not broken(m) then
  begin(m, ARGV[2])
  write()
  return 1
end
if alien == ARGV[1] then
  redis.call('SET', KEYS[1], alien, 'PX', int(math.max(kept(ARGV[2]), redis.call('PTTL', KEYS[1]))))
  return 1
end
return 0
