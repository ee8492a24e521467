-- What every script begins with for a name.
--
-- KEYS[1]  a hash, the lock. The times in its fields are in µs:
--            format  of all this
--            token   the last one that was granted
--            holder  the request that holds the lock exclusively, or empty
--            until, client, label, ttl, since, flags  of that request
--            queue   1: there is a second key
--            kept    until when the hash is kept
-- KEYS[2]  a sorted set, what else there is of the lock; queue.lua has its members. While a slot of
--          a Cluster moves only one of the two may be there, and be given.
-- ARGV[1]  channels: what stands before a client's ID in the name of its channel
-- ARGV[2]  how long (ms) the last token is kept after everybody is gone
-- ARGV[3]  the grant window (µs): how long a waiter that was not heard of for so long has to
--          confirm its grant
--
-- Flags are words with commas between, or "-": fixed, broken, unconfirmed.

local H, S = KEYS[1], KEYS[2]
if not S and string.sub(H, -1) ~= '}' then H, S = nil, H end

local stored = {FORMAT, '0', '', '0', '-', '1', '0'}
if H then
  stored = redis.pcall('HMGET', H, 'format', 'token', 'holder', 'until', 'flags', 'queue', 'kept')
end
local format, holder, flags, queue = stored[1], stored[3], stored[5] or '-', stored[6] == '1'
local last, till, kept = tonumber(stored[2]), tonumber(stored[4]), tonumber(stored[7])
if format ~= FORMAT or not (last and holder and till and kept) then
  examine(H, stored)
  last, kept = 0, 0
end
if holder == '' then holder = false end

-- How long (µs) all is kept after everybody is gone. The field kept is somewhat later, so that not
-- each call has to tell the server.
local keep = ARGV[2] * 1000

-- It is neither broken nor to be confirmed.
local plain = flags == '-' or flags == 'fixed'
