-- ARGV[4]  id
-- ARGV[5]  ttl (µs); 0: only look whether it holds
--
-- Returns 1: it holds; 0: it does not any more; 2: it waits.

-- Most often it is the only one. Then little is needed.
if only and string.sub(only, 2, 33) == ARGV[4] then
  local before, expiry, client, rest = string.match(only, '^(%S+ %a %d+ %x+ %d+) (%d+) %d+ (%x+) ([-f] .*)$')
  if before and tonumber(expiry) > now then
    if ARGV[5] == '0' then return 1 end
    local at = now + ARGV[5]
    local member, index = string.format('%s %.0f %s %s %s', before, at, ARGV[5], client, rest), string.format('e%016.0f%s', at, ARGV[4])
    keepFor(math.ceil(ARGV[5] / 1000) + ARGV[2])
    if member ~= only then
      redis.call('ZADD', KEYS[1], '0', member, '0', index)
      undo[1] = {'ZREM', KEYS[1], member, index}
      if index ~= head[2] then
        redis.call('ZREM', KEYS[1], only, head[2])
      else
        redis.call('ZREM', KEYS[1], only)
      end
    end
    return 1
  end
end

--- include queue.lua

local r = holder(ARGV[4])
if not r then return done(waiter(ARGV[4]) and 2 or 0) end
if has(r, 'b') then return done(0) end
if ARGV[5] == '0' then return done(1) end
r.ttl = tonumber(ARGV[5])
r.expiry = now + r.ttl
flag(r, 'u', false)
store(r.mode, r)
return done(1)
