-- ARGV[4]  token
-- ARGV[5]  1: by force, else 0
-- ARGV[6]  where to continue: "" at first, then from the last reply
--
-- Returns {how many of the requests that it examined are of the hold, how many of these it changed,
-- where to continue}. At the end, where to continue is "".

--- include queue.lua

local n, changes = 0, 0
local function breaks(r)
  if int(r.token) ~= ARGV[4] or r.expiry <= now then return end
  n = n + 1
  if ARGV[5] == '1' then
    changes = changes + 1
    removeHolder(r)
    addTombstone(r.id, r.ttl, true)
    publish(r.client, '-' .. r.id)
  else
    if not has(r, 'broken') then changes = changes + 1 end
    flag(r, 'broken', true)
    store(r.mode, r)
  end
end

if ARGV[6] == '' and held then breaks(held) end
local from = each('sx', ARGV[6], 100, function(member) breaks(read(member)) end)
if n > 0 then grantNext() end
return done({n, changes, from})
