-- ARGV[1] id [2] ttl (ms) [3] client and label [4] least uptime (s), or 0 Returns {1} granted, also
-- to a second copy, {0, ms} held by another for so long, {-1} never again, {-2, s} up for so short
-- a time.
if redis.call('EXISTS', KEYS[2]) == 1 then return {-1} end
local h = read()
if h and h.id ~= ARGV[1] then return {0, redis.call('PTTL', KEYS[1])} end
if h and h.flag == 'b' then return {-1} end
if not h and tonumber(ARGV[4]) > 0 then
  local up = tonumber(string.match(redis.call('INFO', 'server'), 'uptime_in_seconds:(%d+)'))
  if up < tonumber(ARGV[4]) then return {-2, up} end
end
local since = h and h.since or int(now())
redis.call('SET', KEYS[1], table.concat({ARGV[1], '-', ARGV[2], since, ARGV[3]}, ' '), 'PX', int(kept(ARGV[2])))
return {1}
