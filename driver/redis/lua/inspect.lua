-- ARGV[4]  where to go on: "" at first, then as the last reply says
--
-- Returns {now (µs), those who hold, those who wait, in order, where to go on}. Each request is
-- returned as it is stored in the sorted set. Those who wait come first: one that is granted
-- meanwhile is there twice. In the end there is nowhere to go on: "".

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
