-- ARGV[1]  id
-- ARGV[2]  ttl (ms)
-- ARGV[3]  client and label
-- ARGV[4]  the minimum uptime (s), or 0
--
-- Returns one of
--   {1}      granted, also if the same request already stands there
--   {0, ms, id, client and label, ms}
--            held by another one: the time left to it, and the time since it was granted
--   {0, ms, value}
--            held by a peer: the time left to it, or -1 if it has no expiry
--   {-1}     refused for ever: it was released or broken
--   {-2, s}  refused: the server has been up for only that long
if redis.call('EXISTS', KEYS[2]) == 1 then return {-1} end
local h = read()
if h and h.id ~= ARGV[1] and h.foreign then return {0, left(h), h.id} end
if h and h.id ~= ARGV[1] then return {0, left(h), h.id, h.rest, int(math.max(0, now() - h.since))} end
if h and h.flag == 'b' then return {-1} end
if not h and tonumber(ARGV[4]) > 0 then
  local up = tonumber(string.match(redis.call('INFO', 'server'), 'uptime_in_seconds:(%d+)'))
  if up < tonumber(ARGV[4]) then return {-2, up} end
end
if h then
  extend(h, ARGV[2])
  return {1}
end
write({id = ARGV[1], flag = '-', ttl = ARGV[2], since = int(now()), rest = ARGV[3]}, 'PX', int(kept(ARGV[2])))
return {1}
