-- What every script begins with: the server's clock (µs), and the first members of the name's
-- sorted set, which are all of it if nobody stands there, or one request. queue.lua has what they
-- mean.
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local head = redis.call('ZRANGE', KEYS[1], 0, 4)
local header = head[1]
if header and not string.find(header, '^!1 %d+$') then error('the member ' .. header .. ' of ' .. KEYS[1] .. ' is not of dlock') end

-- If one request stands there, holds, and there is nothing else: its member, its parts, and what
-- comes with it.
local lone = #head == 3 and head[3] or #head == 4 and string.sub(head[3], 1, 1) == 'l' and head[4] or nil
