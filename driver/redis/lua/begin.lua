-- The beginning of every script, for one name.
--
-- KEYS[1]  a hash, the lock. The times in its fields are in µs:
--            format  of everything kept under the name
--            token   the last one granted
--            holder  the request that holds, if it is the only one apart from its joins; else empty
--            until, mode, client, label, ttl, since, flags  of that request
--            queue   since when there is a second key, or 0
--            kept    until when the hash is kept
-- KEYS[2]  a sorted set, the rest of the lock: queue.lua has its members. While a slot of a Cluster
--          moves, only one of the two keys may be there, and be passed.
-- ARGV[1]  channels: the prefix of a channel's name, which a client's ID follows
-- ARGV[2]  how long (ms) the last token is kept after the last request is gone
-- ARGV[3]  the grant window (µs): how long a waiter has to confirm its grant if its client last
--          asked for it longer ago than that
--
-- Flags are "-", or words separated by commas: fixed, broken, unconfirmed.

local H, S = KEYS[1], KEYS[2]
if not S and string.sub(H, -1) ~= '}' then H, S = nil, H end

local stored = {FORMAT, '0', '', '0', '-', '0', '0'}
if H then
  stored = redis.pcall('HMGET', H, 'format', 'token', 'holder', 'until', 'flags', 'queue', 'kept')
end
local format, holder, flags, queue = stored[1], stored[3], stored[5], stored[6]
local last, till, kept = tonumber(stored[2]), tonumber(stored[4]), tonumber(stored[7])
local numbers = last and till and kept and tonumber(queue) and
  stored[2] .. stored[4] .. queue .. stored[7]
if format ~= FORMAT or not (holder and flags and numbers and string.find(numbers, '^%d+$')) or
    math.max(last, till, queue, kept) > MOST then
  examine(H, stored)
  last, flags, queue, kept = 0, '-', '0', 0
end
if holder == '' then holder = false end
if queue == '0' then queue = false end

-- How long (µs) the keys are kept after the last request is gone. The field kept is somewhat later,
-- so that not every call has to set the expiry.
local keep = ARGV[2] * 1000

-- The holder is neither broken nor unconfirmed.
local plain = flags == '-' or flags == 'fixed'
