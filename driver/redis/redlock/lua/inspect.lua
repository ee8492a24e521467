-- Returns {} if nobody holds, else {the holder, ms that are left to it, ms since it came}.
local h = read()
if not h then return {} end
return {h.text, math.min(redis.call('PTTL', KEYS[1]), tonumber(h.ttl)), int(math.max(0, now() - h.since))}
