-- Returns {} if there is no holder, else {id, flag, ttl (ms), client and label, ms left to the
-- hold, ms since it was granted}, followed by the id and the ms left of each fixed request that
-- joined the holder. Numbers that may be large are text. If the holder is a peer's, it returns its
-- value, "f", and ms left to it, or -1 if it has no expiry.
local h = read()
if not h then return {} end
if h.foreign then return {h.id, 'f', left(h)} end
local ms, k = left(h), readKept(h)
if not k then ms = math.min(ms, tonumber(h.ttl)) end
local t = now()
local reply = {h.id, h.flag, h.ttl, h.rest, ms, int(math.max(0, t - h.since))}
for id, stop in pairs(k and k.ids or {}) do
  reply[#reply + 1] = id
  reply[#reply + 1] = math.max(0, stop - t)
end
return reply
