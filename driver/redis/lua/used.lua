-- Returns 1 if a request stands there, else 0.

-- Most often there is one or none. Then little is needed.
local over = only and string.match(only, '^%S+ %a %d+ %x+ %d+ (%d+) ')
if #head < 2 or over and tonumber(over) > now then
  if header then -- the set may have lost its time
    local left = over and math.ceil((over - now) / 1000) or 0
    redis.call('PEXPIRE', KEYS[1], string.format('%.0f', left + ARGV[2]), 'NX')
  end
  return over and 1 or 0
end

--- include queue.lua

grantNext()
local function lives(kind)
  local member = final(kind)
  return member and time(member) > now
end
return done((lives('e') or lives('f')) and 1 or 0)
