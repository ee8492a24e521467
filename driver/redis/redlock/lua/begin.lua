-- The beginning of every script of Redlock. The next parts are the layout, own.lua or setnx.lua,
-- and members.lua. In both layouts there are:
--
-- KEYS[1]  the key of the lock
-- KEYS[2]  the tombstone of an ID: while it is there, that ID creates nothing. A call that does not
--          touch it has KEYS[1] in its place.
--
-- What dlock keeps of a lock are its members, the requests that hold it together, in one text:
--   !2 MEMBER
--   MEMBER
--   …
-- It begins with the format. A MEMBER is one line:
--   ID OWNER mode flags ttl(ms) until(ms) since(ms) CLIENT length label
-- OWNER is the request that began the hold; of an arrival it is the ID itself. The mode is x
-- (exclusive) or s (shared). The flags are "-", or letters: b it was broken, f it is fixed. until
-- is when it expires, since when it was granted. The length (bytes) is the label's, which may have
-- any bytes.

-- The format of what dlock keeps for Redlock. It changes with the parts of a member, with their
-- meaning, and with the rules by which scripts change them. In every format the text begins with
-- the format, then the ID of the first member, so that a client with another format can detect it.
local FORMAT = '!2'

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000) -- the server's clock (ms)

local function int(x) return string.format('%.0f', x) end

-- parse returns the members of a text; nil if it is not of dlock.
local function parse(key, text)
  local format, at = string.match(text, '^!(%d+) ()')
  if not format then return nil end
  if '!' .. format ~= FORMAT then
    error('the key ' .. key .. ' has the format ' .. format .. ' of dlock; this client has ' .. string.sub(FORMAT, 2))
  end
  local list = {}
  while at <= #text do
    local m, length, label = {}, nil, nil
    m.id, m.owner, m.mode, m.flags, m.ttl, m.till, m.since, m.client, length, label = string.match(text,
      '^(%x+) (%x+) ([xs]) ([-bf]+) (%d+) (%d+) (%d+) (%x+) (%d+) ()', at)
    if not m.id then return nil end
    m.till, m.label = tonumber(m.till), string.sub(text, label, label + length - 1)
    list[#list + 1] = m
    at = label + length + 1
  end
  return list[1] and list
end

-- line returns a member as text.
local function line(m)
  return table.concat({m.id, m.owner, m.mode, m.flags, m.ttl, int(m.till), m.since, m.client, #m.label, m.label}, ' ')
end
