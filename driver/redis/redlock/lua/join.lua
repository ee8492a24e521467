-- ARGV[1]  id, of a fixed request that joins the holder
-- ARGV[2]  ttl (ms)
-- ARGV[3]  the holder's id
--
-- Returns {1} if it lasts for its full time. If it already stood there, that begins again, even if
-- another request has taken the holder's place. Returns {-1} if the holder is not there or was
-- broken, or if the id was released. The request is kept for its TTL and a millisecond: no client
-- trusts it, so the rates of the clocks do not matter.
if redis.call('EXISTS', KEYS[2]) == 1 then return {-1} end
local h = read()
if not h or h.flag == 'b' then return {-1} end
local k = readKept(h)
if h.id == ARGV[1] then -- it has taken the holder's place
  if not k then
    expire(int(ARGV[2] + 1))
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
