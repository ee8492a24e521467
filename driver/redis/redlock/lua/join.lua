-- ARGV[1]  id, of a fixed request that joins the holder
-- ARGV[2]  ttl (ms)
-- ARGV[3]  the holder's id
--
-- Returns {1} if it stands until its time, which begins again if it stood there already, also if
-- another one has taken the holder's place, or {-1} if the holder is not there, or was broken, or
-- the id was released. It is kept for its TTL and a millisecond: no client trusts in it, so the
-- clocks' rates do not matter.
if redis.call('EXISTS', KEYS[2]) == 1 then return {-1} end
local h = read()
if not h or h.flag == 'b' then return {-1} end
local k = readKept(h)
if h.id == ARGV[1] then -- it has taken the holder's place
  if not k then
    redis.call('PEXPIRE', KEYS[1], int(ARGV[2] + 1))
    return {1}
  end
  k.stop = now() + ARGV[2] + 1
  writeKept(h, k)
  return {1}
end
if h.id ~= ARGV[3] and not (k and k.ids[ARGV[1]]) then return {-1} end
k = k or {stop = now() + redis.call('PTTL', KEYS[1]), ids = {}}
k.ids[ARGV[1]] = now() + ARGV[2] + 1
writeKept(h, k)
return {1}
