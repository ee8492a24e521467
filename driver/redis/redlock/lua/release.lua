-- ARGV[1]  id
-- ARGV[2]  ttl (ms)
-- ARGV[3]  1: leave a tombstone for that time, else 0
--
-- Returns 1 if it was there and not broken, else 0.
if ARGV[3] == '1' then redis.call('SET', KEYS[2], 'released', 'PX', ARGV[2]) end
local m, i = find(ARGV[1])
if m then
  table.remove(members, i)
  write()
  return broken(m) and 0 or 1
end
if alien ~= ARGV[1] then return 0 end
-- What dlock kept of the lock is lost. Others may have held it together with this one, for no
-- longer than the key stands. So it stands until then, and is no request's any more.
local ms = redis.call('PTTL', KEYS[1])
if ms < 0 then ms = kept(ARGV[2]) end
redis.call('SET', KEYS[1], alien .. ' released', 'PX', int(math.max(1, ms)))
return 1
