-- ARGV[4]  id
-- ARGV[5]  ttl (µs) of the tombstone to leave, or 0
--
-- Returns 1: it was there and is not any more; 0: it was not; -1: it was ended by an operator.

-- Most often it is the only one. Then little is needed.
if only and ARGV[5] == '0' and string.sub(only, 2, 33) == ARGV[4] then
  local expiry, flags = string.match(only, '^%S+ %a %d+ %x+ %d+ (%d+) %d+ %x+ (%S+) ')
  if expiry and tonumber(expiry) > now and not string.find(flags, 'b', 1, true) then
    redis.call('ZREM', KEYS[1], unpack(head, 2))
    -- What is left of its time counts for little, unless that is long.
    if (expiry - now) / 1000 > ARGV[2] + 0 then
      redis.call('PEXPIRE', KEYS[1], ARGV[2])
    else -- it may have lost its time
      redis.call('PEXPIRE', KEYS[1], ARGV[2], 'NX')
    end
    return 1
  end
end

--- include queue.lua

local id, ttl = ARGV[4], tonumber(ARGV[5])
local r = holder(id)
local was = r or waiter(id)
local ended = r and has(r, 'b') or not was and tombstone(id) == 'f'
if r then
  removeHolder(r)
elseif was then
  removeWaiter(was)
end
if ended and r then ttl = math.max(ttl, r.ttl) end -- a copy of this call has to say the same
if ttl > 0 then addTombstone(id, ttl, ended) end
if was then grantNext() end
return done(ended and -1 or was and 1 or 0)
