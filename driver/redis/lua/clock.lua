-- The beginning of every command, for one name or many.

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

-- The format of what dlock keeps under a name. It changes with the fields and members, with their
-- meaning, with the rules by which scripts change them, and with the messages that they publish.
local FORMAT = '3'

local function foreign(key, what) error(what .. ' of ' .. key .. ' is not of dlock') end

local MODES = {exclusive = 'x', shared = 's'}

-- The greatest number: Lua is exact up to here.
local MOST = 9e15

-- numeral returns the number in a field, if dlock could have written it.
local function numeral(text)
  local number = text and string.find(text, '^%d+$') and tonumber(text)
  return number and number <= MOST and number
end

-- examine is for fields that are not as expected. It accepts only a key that does not exist, and
-- otherwise fails with the reason.
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
