-- What a command begins with, for however many names it is.

-- clock returns the server's time (µs). It stands still while a script runs.
local asked
local function clock()
  if not asked then
    local t = redis.call('TIME')
    asked = t[1] * 1000000 + t[2]
  end
  return asked
end

local function int(x) return string.format('%.0f', x) end

-- The format of what dlock keeps under a name. It changes with the fields and the members, with
-- their meaning, with the rules by which scripts change them, and with what they publish.
local FORMAT = '3'

local function foreign(key, what) error(what .. ' of ' .. key .. ' is not of dlock') end

local MODES = {exclusive = 'x', shared = 's'}

-- No number is greater: Lua is exact up to there.
local MOST = 9e15

-- numeral returns the number that a field has, if dlock may have written it.
local function numeral(text)
  local number = text and string.find(text, '^%d+$') and tonumber(text)
  return number and number <= MOST and number
end

-- examine is for fields that are not as they should be. It refuses all but a key that is not there.
local function examine(key, stored)
  local format = stored[1]
  if stored.err then
    local set = redis.pcall('ZRANGE', key, '0', '0') -- up to format 2 it was a sorted set
    format = string.match(set[1] or '', '^!(%d+) ') or error(stored)
  end
  if format and format ~= FORMAT then
    error('the key ' .. key .. ' has the format ' .. format .. ' of dlock; this client has ' ..
      FORMAT)
  elseif not format and redis.call('EXISTS', key) == 1 then
    foreign(key, 'what stands there')
  end
  for i, field in ipairs({'format', 'token', 'holder', 'until', 'flags', 'queue', 'kept'}) do
    local number = field ~= 'holder' and field ~= 'flags'
    if format and not (stored[i] and (not number or numeral(stored[i]))) then
      foreign(key, 'the field ' .. field)
    end
  end
end
