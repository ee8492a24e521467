-- ARGV[4]  id
-- ARGV[5]  the least token that its hold is to have
--
-- Returns {1, token}, or {-1, lost} if it is not the Exclusive holder or is broken. The hash has
-- the token of that holder as the last one, so later ones are greater. The joins get the token too.
-- All of them are read: so soon after a grant there are few.

--- include queue.lua

if not held or held.id ~= ARGV[4] or held.mode ~= 'x' or held.expiry <= now or
    has(held, 'broken') then
  return done({-1, 'lost'})
end
local least = tonumber(ARGV[5])
if last < least then
  last, held.token, rewritten = least, least, true
  local joins = 'j' .. held.id
  for _, member in ipairs(range('[' .. joins, '(' .. joins .. '\255', -1)) do
    local r = stands(string.sub(member, 34)) or unknown(member)
    r.token = least
    store(r.mode, r)
  end
end
return done({1, last})
