-- What every script begins with for a name.
--
-- KEYS[1]  a hash, the lock. The times in its fields are in µs:
--            format  of all this
--            token   the last one that was granted
--            holder  the request that holds the lock exclusively; without it there is none
--            client, label, ttl, since, until, flags  of that request
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
if string.sub(H, -1) ~= '}' then H, S = nil, H end

local FIELDS = {'format', 'token', 'holder', 'client', 'label', 'ttl', 'since', 'until', 'flags', 'queue', 'kept'}
local stored = {FORMAT, '0', false, false, false, false, false, false, false, '1'}
if H then
  stored = redis.pcall('HMGET', H, unpack(FIELDS))
  if stored.err then
    local before = redis.pcall('ZRANGE', H, '0', '0') -- up to format 2 it was a sorted set
    stored = {string.match(before[1] or '', '^!(%d+) ') or error(stored)}
  end
end
local format, holder, flags, queue = stored[1], stored[3], stored[9], stored[10]

local function foreign(what) error(what .. ' of ' .. (H or S) .. ' is not of dlock') end
local function number(i) return tonumber(stored[i]) or foreign('the field ' .. FIELDS[i]) end

if format ~= FORMAT then
  if format then error('the key ' .. H .. ' has the format ' .. format .. ' of dlock; this client has ' .. FORMAT) end
  if redis.call('EXISTS', H) == 1 then foreign('what stands there') end
end
local last, till = format and number(2) or 0, holder and number(8)
local kept = format and stored[11] and number(11) or 0
local keep = ARGV[2] * 1000

-- keepUntil sets for how long all is kept, if it is over at that time. It is somewhat longer, so that
-- not each call has to tell the server. It reports whether this one has to.
local function keepUntil(at)
  if kept >= at + keep then return false end
  kept = at + keep * 1.25
  return true
end

-- expire has a key expire then.
local function expire(key, ...)
  local left = kept > clock() and kept - clock() or keep
  return redis.call('PEXPIRE', key, int(math.ceil(left / 1000)), ...) == 1
end

-- mend gives a key its time, which somebody may have taken or changed.
local function mend(key) return kept > clock() and expire(key, 'GT') or expire(key, 'NX') end

-- write changes fields, by their numbers: to a value, or to false if they are to go.
local function write(values)
  local set, gone, back, new = {'HSET', H}, {'HDEL', H}, {'HSET', H}, {'HDEL', H}
  for i, value in pairs(values) do
    local to = value and set or stored[i] and gone or {}
    to[#to + 1] = FIELDS[i]
    if value then to[#to + 1] = value end
    to = stored[i] and back or new
    to[#to + 1] = FIELDS[i]
    if stored[i] then to[#to + 1] = stored[i] end
  end
  undo[#undo + 1] = new
  undo[#undo + 1] = back
  if #set > 2 then redis.call(unpack(set)) end
  if #gone > 2 then redis.call(unpack(gone)) end
end

-- plain reports whether the request holds exclusively, and is neither broken nor to be confirmed.
local function plain(id) return holder == id and (flags == '-' or flags == 'fixed') end
