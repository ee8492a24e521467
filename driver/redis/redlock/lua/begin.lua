-- What every script of Redlock begins with.
--
-- KEYS[1]  the holder, a string that expires with it:
--          !1 ID flag ttl(ms) since(ms) client label
--          It begins with the format. The flag is "b" if the hold was broken, else "-". since is when
--          it was granted.
-- KEYS[2]  the tombstone of an ID: while it is there, that ID creates nothing

-- The format of what dlock keeps for Redlock. It changes with the parts of the holder, with their
-- meaning, and with the rules by which scripts change them. In every format the holder begins with
-- it, so that a client of another one knows.
local FORMAT = '!1'

-- read returns the holder, or nil.
local function read()
  local text = redis.call('GET', KEYS[1])
  if not text then return nil end
  local format, id, flag, ttl, since, rest = string.match(text, '^(!%d+) (%x+) ([-b]) (%d+) (%d+) (.*)$')
  if format == FORMAT then return {id = id, flag = flag, ttl = ttl, since = since, rest = rest} end
  local other = string.match(text, '^!(%d+) ')
  if other and '!' .. other ~= FORMAT then
    error('the key ' .. KEYS[1] .. ' has the format ' .. other .. ' of dlock; this client has ' .. string.sub(FORMAT, 2))
  end
  error('the value of ' .. KEYS[1] .. ' is not a request of dlock')
end

-- write stores the holder. The other arguments are those of SET behind the value.
local function write(h, ...)
  redis.call('SET', KEYS[1], table.concat({FORMAT, h.id, h.flag, h.ttl, h.since, h.rest}, ' '), ...)
end

-- now returns the server's clock (ms).
local function now()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end

-- kept returns for how long (ms) a master keeps a hold. Clocks run at different rates, and keys
-- expire in whole milliseconds: it is a hundredth of the TTL and 3 ms longer than the hold is
-- trusted.
local function kept(ttl) return math.ceil((ttl + 3) * 100 / 99) end

local function int(x) return string.format('%.0f', x) end
