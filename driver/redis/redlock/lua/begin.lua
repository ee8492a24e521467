-- What every script of Redlock begins with.
--
-- KEYS[1] the holder, a string that expires with it: ID flag ttl(ms) since(ms) client label. The
-- flag is "b" if it
--          was broken, else "-"
-- KEYS[2]  the tombstone of an ID: while it is there, that ID creates nothing
local function read()
  local text = redis.call('GET', KEYS[1])
  if not text then return nil end
  local id, flag, ttl, since, rest = string.match(text, '^(%x+) ([-b]) (%d+) (%d+) (.*)$')
  if not id then error('the value of ' .. KEYS[1] .. ' is not a request of dlock') end
  return {id = id, flag = flag, ttl = ttl, since = since, rest = rest, text = text}
end

local function now()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end

-- Clocks run at different rates, and keys expire in whole milliseconds: a master keeps a hold a
-- hundredth of its time and 2 ms longer than it is trusted.
local function kept(ttl) return math.ceil((ttl + 3) * 100 / 99) end

local function int(x) return string.format('%.0f', x) end
