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

-- The format of what dlock keeps under a name. It changes with the fields and the members, with
-- their meaning, with the rules by which scripts change them, and with what they publish.
local FORMAT = '3'

local function int(x) return string.format('%.0f', x) end
