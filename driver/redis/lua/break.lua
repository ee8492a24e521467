-- ARGV[4] token  [5] force: 1 or 0. Returns how many requests the hold had.

--- include queue.lua

local n = 0
for id, r in pairs(held) do
  if int(r.token) == ARGV[4] then
    n = n + 1
    if ARGV[5] == '1' then
      held[id] = nil
      redis.call('HDEL', H, id)
      bury(id, r.ttl, true)
      redis.call('PUBLISH', channels .. r.client, '-' .. id)
    else
      flag(r, 'b', true)
      store(r)
    end
  end
end
if n > 0 then
  settle()
  save()
end
return n
