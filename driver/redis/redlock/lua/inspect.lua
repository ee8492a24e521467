-- Returns the members: for each its id, owner, mode, flags, ttl (ms), client, label, the ms left to
-- it, not more than its TTL, and the ms since it was granted. If the lock is a peer's, it returns
-- its value, "f", and the ms left to it, or -1 if it has no expiry.
if alien then return {alien, 'f', redis.call('PTTL', KEYS[1])} end
local reply = {}
for i, m in ipairs(members) do
  local left, age = math.min(m.till - now, m.ttl), math.max(0, now - m.since)
  reply[i] = {m.id, m.owner, m.mode, m.flags, tonumber(m.ttl), m.client, m.label, left, age}
end
return reply
