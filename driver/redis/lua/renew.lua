-- ARGV[4]  id
-- ARGV[5]  ttl (µs)
--
-- Returns 1: it holds; 0: it does not any more; 2: it waits.

-- Most often it is the only one. Then little is needed.
if only and string.sub(only, 2, 33) == ARGV[4] then
  local before, expiry, client, rest = string.match(only, '^(%S+ %a %d+ %x+ %d+) (%d+) %d+ (%x+) ([-f] .*)$')
  if before and tonumber(expiry) > now then
    local at = now + ARGV[5]
    redis.call('ZREM', KEYS[1], only, head[2])
    redis.call('ZADD', KEYS[1], '0', string.format('%s %.0f %s %s %s', before, at, ARGV[5], client, rest),
      '0', string.format('e%016.0f%s', at, ARGV[4]))
    redis.call('PEXPIRE', KEYS[1], math.ceil(ARGV[5] / 1000) + ARGV[2], 'GT')
    return 1
  end
end

--- include queue.lua

local r = holder(ARGV[4])
if not r then return done(waiter(ARGV[4]) and 2 or 0) end
if has(r, 'b') then return done(0) end
r.ttl = tonumber(ARGV[5])
r.expiry = now + r.ttl
flag(r, 'u', false)
store(r.mode, r)
return done(1)
