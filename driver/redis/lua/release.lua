-- ARGV[4] id  [5] ttl (µs) of the tombstone to leave, or 0
-- Returns 1: it was there and is not any more; 0: it was not; -1: it was ended by force.

-- Most often it is alone, and little is needed.
if #raw == 4 and ARGV[5] == '0' then
  local at = raw[1] == ARGV[4] and raw[3] == 't' and 2 or raw[3] == ARGV[4] and raw[1] == 't' and 4
  local expiry = at and string.match(raw[at], '^%a %d+ %x+ %d+ (%d+) ')
  if expiry and tonumber(expiry) > now then
    redis.call('HDEL', KEYS[1], ARGV[4])
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
    return 1
  end
end

--- include queue.lua

local id, ttl = ARGV[4], tonumber(ARGV[5])
local was = held[id] ~= nil
local forced = (gone[id] or 0) < 0
if was then
  held[id] = nil
  redis.call('HDEL', H, id)
elseif awaiting(id) then
  unwait(id)
  was = true
end
if ttl > 0 then bury(id, ttl) end
if was then settle() end
if was or ttl > 0 then save() end
if was then return 1 end
return forced and -1 or 0
