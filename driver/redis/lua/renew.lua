-- ARGV[4]  id
-- ARGV[5]  ttl (µs); 0: only look whether it holds
--
-- Returns 1: it holds; 0: it does not any more; 2: it waits.

-- Most often nothing stands beside it. Or that is on another node, and does not matter here.
if holder == ARGV[4] and plain and not (queue and S) and till > clock() then
  if ARGV[5] == '0' then return 1 end
  local at = clock() + ARGV[5]
  undo[1] = {'HSET', H, 'until', stored[4], 'kept', stored[7]}
  kept = math.max(kept, at + keep * 1.25)
  redis.call('HSET', H, 'until', int(at), 'ttl', ARGV[5], 'kept', int(kept))
  local ms = int(math.ceil((kept - clock()) / 1000))
  if redis.call('PEXPIRE', H, ms, 'GT') == 0 then redis.call('PEXPIRE', H, ms, 'NX') end
  return 1
end

--- include queue.lua

local r = holds(ARGV[4])
if not r then return done(waiter(ARGV[4]) and 2 or 0) end
if has(r, 'broken') then return done(0) end
if ARGV[5] == '0' then return done(1) end
r.ttl = tonumber(ARGV[5])
r.expiry = now + r.ttl
flag(r, 'unconfirmed', false)
store(r.mode, r)
mend()
return done(1)
