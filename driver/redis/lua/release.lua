-- ARGV[4]  id
-- ARGV[5]  ttl (µs) of the tombstone to leave, or 0
-- ARGV[6]  letters: c by the client's clock it cannot have expired; l its TTL is longer than the
--          time for which the last token is kept, which then begins now
--
-- Returns 1: it was removed; 0: it was not there; -1: it was ended by an operator.

-- Most often there is no set. Even if it has expired by now, no other request has held the lock.
local how = ARGV[6]
if holder == ARGV[4] and plain and not queue and ARGV[5] == '0' and
    (how == 'c' or how == '' and till > clock()) then
  redis.call('HSET', H, 'holder', '', 'client', '', 'label', '')
  return 1
end

--- include queue.lua

local id, left = ARGV[4], tonumber(ARGV[5])
local r = holds(id)
local was = r or waiter(id)
local ended = r and has(r, 'broken') or not was and tombstone(id) == 'f'
if r then
  removeHolder(r)
elseif was then
  removeWaiter(was)
end
if ended and r then left = math.max(left, r.ttl) end -- a copy of this call must return the same
if left > 0 then addTombstone(id, left, ended) end
if was then grantNext() end
return done(ended and -1 or was and 1 or 0)
