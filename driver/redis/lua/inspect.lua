-- ARGV[4]  where to continue: "" at first, then from the last reply
--
-- Returns {now (µs), the holders, the waiters in order, where to continue}. Each request is
-- returned as it is stored in the sorted set. Waiters are read first, so a request that is granted
-- between two calls appears twice. At the end, where to continue is "".

--- include queue.lua

local holding, waiting = {}, {}
if ARGV[4] == '' then grantNext() end
local from = each('qsx', ARGV[4], 250, function(member)
  if string.sub(member, 1, 1) == 'q' then
    local r = get('w', name(member)) or unknown(member)
    if waits(r) then waiting[#waiting + 1] = r.member end
  elseif read(member).expiry > now then
    holding[#holding + 1] = member
  end
end)
if from == '' and held then holding[#holding + 1] = text(held.mode, held) end
mend()
return done({now, holding, waiting, from})
