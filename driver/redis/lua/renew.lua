-- ARGV[4] id  [5] ttl (µs). Returns 1: it holds, 0: it does not any more, 2: it waits.

--- include queue.lua

local r = held[ARGV[4]]
if not r then
  return awaiting(ARGV[4]) and 2 or 0
end
if has(r, 'b') then return 0 end
r.ttl = tonumber(ARGV[5])
r.expiry = now + r.ttl
flag(r, 'u', false)
store(r)
save()
return 1
