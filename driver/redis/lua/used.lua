-- Returns 1 if a request stands under the name, else 0.

if queue and not S then return 1 end -- its slot is moving

--- include queue.lua

grantNext()
local function lives(kind)
  local member = final(kind)
  return member and time(member) > now
end
mend()
return done((held or lives('e') or lives('f')) and 1 or 0)
