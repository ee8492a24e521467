-- ARGV[4]  id
-- ARGV[5]  ttl (µs); 0: only look whether it holds
--
-- Returns 1: it holds; 0: it does not any more; 2: it waits.

-- Most often nothing stands beside it, or is not there to be looked at.
if plain(ARGV[4]) and not (queue and S) and till > clock() then
  if ARGV[5] ~= '0' then
    till = clock() + ARGV[5]
    keepUntil(till)
    write({[6] = ARGV[5], [8] = int(till), [11] = int(kept)})
    mend(H)
  end
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
return done(1)
