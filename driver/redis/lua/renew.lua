-- ARGV[4]  id
-- ARGV[5]  ttl (µs); 0: only check that it holds
-- ARGV[6]  "", or for a call with the hash alone: the reply of the call with the set alone
--
-- Returns 1: it holds; 0: it no longer holds; 2: it waits. With the set alone, a request that holds
-- there returns the time since when the set exists. It holds if the hash then has the same time.

local beside = ARGV[6] ~= ''
if beside and queue ~= ARGV[6] then return 0 end

-- Most often there is no set, or it is on another node and is not needed.
if beside or holder == ARGV[4] and not (queue and S) and till > clock() then
  if not beside and string.find(flags, 'broken') then return 0 end
  if ARGV[5] == '0' then return 1 end
  local at = clock() + ARGV[5]
  local over = math.max(kept, at + keep * 1.25)
  if not beside then
    undo[1] = {'HSET', H, 'until', stored[4], 'kept', stored[7], 'flags', flags}
    if not queue then kept = over end -- it is the time for both keys
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
