-- ARGV[4]  token
-- ARGV[5]  1: by force, else 0
-- ARGV[6]  where to go on: "" at first, then as the last reply says
--
-- Returns {how many of the requests that it looked at are of the hold, on how many it changed that,
-- where to go on}. In the end there is nowhere to go on: "".

--- include queue.lua

local most = 100 -- for one call
local n, changes, from = 0, 0, ARGV[6]
for _, kind in ipairs({'s', 'x'}) do
  if from == '' then from = '[' .. kind end
  if most > 0 and string.sub(from, 2, 2) == kind then
    local members = redis.call('ZRANGE', S, from, '(' .. string.char(string.byte(kind) + 1), 'BYLEX', 'LIMIT', '0', int(most))
    for _, member in ipairs(members) do
      local r = read(member)
      if int(r.token) == ARGV[4] and r.expiry > now then
        n = n + 1
        if ARGV[5] == '1' then
          changes = changes + 1
          removeHolder(r)
          addTombstone(r.id, r.ttl, true)
          publish(r.client, '-' .. r.id)
        else
          if not has(r, 'b') then changes = changes + 1 end
          flag(r, 'b', true)
          store(r.mode, r)
        end
      end
    end
    most = most - #members
    from = most == 0 and '(' .. members[#members] or ''
  end
end
if n > 0 then grantNext() end
return done({n, changes, from})
