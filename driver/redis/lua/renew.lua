-- ARGV[4]  id
-- ARGV[5]  ttl (µs); 0: only look whether it holds
-- ARGV[6]  "", or for the hash alone: what the set returned, in which it holds
--
-- Returns 1: it holds; 0: it does not any more; 2: it waits. The set alone returns, if it holds
-- there, since when there is this set. It holds if the hash then knows that one.

local beside = ARGV[6] ~= ''
if beside and queue ~= ARGV[6] then return 0 end

-- Most often nothing stands beside it. Or that is on another node, and does not matter here.
if beside or holder == ARGV[4] and not (queue and S) and till > clock() then
  if not beside and string.find(flags, 'broken') then return 0 end
  if ARGV[5] == '0' then return 1 end
  local at = clock() + ARGV[5]
  local over = math.max(kept, at + keep * 1.25)
  if not beside then
    undo[1] = {'HSET', H, 'until', stored[4], 'kept', stored[7], 'flags', flags}
    if not queue then kept = over end -- it says how long both are kept
    redis.call('HSET', H, 'until', int(at), 'ttl', ARGV[5], 'kept', int(kept),
      'flags', string.find(flags, 'fixed') and 'fixed' or '-')
  end
  local ms = int(math.ceil((over - clock()) / 1000))
  if redis.call('PEXPIRE', H, ms, 'GT') == 0 then redis.call('PEXPIRE', H, ms, 'NX') end
  return 1
end

--- include queue.lua

local r = holds(ARGV[4])
if not r then return done(waiter(ARGV[4]) and 2 or 0) end
if has(r, 'broken') then return done(0) end
local answer = H and 1 or tonumber(queue)
if ARGV[5] == '0' then return done(answer) end
r.ttl = tonumber(ARGV[5])
r.expiry = now + r.ttl
flag(r, 'unconfirmed', false)
store(r.mode, r)
mend()
return done(answer)
