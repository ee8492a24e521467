-- The beginning of every script of Redlock. The next part is the layout, own.lua or setnx.lua,
-- which has the key of the holder, KEYS[1]. In both layouts there are:
--
-- KEYS[2]  the tombstone of an ID: while it is there, that ID creates nothing
-- KEYS[3]  what joined the holder; see joined.lua

-- The format of what dlock keeps for Redlock. It changes with the parts of the holder, with their
-- meaning, and with the rules by which scripts change them. In every format the holder begins with
-- it, so that a client with another format can detect it.
local FORMAT = '!1'

local function otherFormat(key, other)
  error('the key ' .. key .. ' has the format ' .. other .. ' of dlock; this client has ' .. string.sub(FORMAT, 2))
end

-- text returns what dlock writes of a holder.
local function text(h) return table.concat({FORMAT, h.id, h.flag, h.ttl, h.since, h.rest}, ' ') end

-- now returns the server's clock (ms).
local function now()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end

-- kept returns how long (ms) a master keeps a hold: a hundredth of the TTL and 3 ms longer than the
-- hold is trusted, since clocks run at different rates and keys expire in whole milliseconds.
local function kept(ttl) return math.ceil((ttl + 3) * 100 / 99) end

local function int(x) return string.format('%.0f', x) end
