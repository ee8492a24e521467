-- What every script begins with for a name: the first members of its sorted set. These are all of
-- it if nobody stands there, or one request. queue.lua says what they mean.

local head = redis.call('ZRANGE', KEYS[1], '0', '11')
local header = head[1]
if header and not string.find(header, HEADER) then
  local other = string.match(header, '^!(%d+) ')
  if other and other ~= string.match(FORMAT, '%d+') then
    error('the key ' .. KEYS[1] .. ' has the format ' .. other .. ' of dlock; this client has ' .. string.match(FORMAT, '%d+'))
  end
  error('the member ' .. header .. ' of ' .. KEYS[1] .. ' is not of dlock')
end

-- keepFor has the set expire in so many ms, and no earlier than it does. One that has lost its
-- time, as by PERSIST or RESTORE, gets it back.
local function keepFor(ms)
  ms = string.format('%.0f', ms)
  if redis.call('PEXPIRE', KEYS[1], ms, 'GT') == 0 then redis.call('PEXPIRE', KEYS[1], ms, 'NX') end
end

-- The member of the request, if exactly one stands there, it holds, and the set has nothing else
-- but what belongs to it.
local only = #head == 3 and head[3] or #head == 4 and string.sub(head[3], 1, 1) == 'l' and head[4] or nil
