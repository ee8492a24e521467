-- Returns {} if nobody holds, else {id, flag, ttl (ms), client and label, ms that are left to the
-- hold, ms since it was granted}. Numbers that may be large are text.
local h = read()
if not h then return {} end
return {h.id, h.flag, h.ttl, h.rest, math.min(redis.call('PTTL', KEYS[1]), tonumber(h.ttl)), int(math.max(0, now() - h.since))}
