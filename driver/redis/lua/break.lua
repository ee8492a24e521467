-- ARGV[4]  token
-- ARGV[5]  1: by force, else 0
--
-- Returns how many requests the hold had.

--- include queue.lua

local n = 0
for _, kind in ipairs({'s', 'x'}) do
  for _, member in ipairs(redis.call('ZRANGE', S, '[' .. kind, '(' .. string.char(string.byte(kind) + 1), 'BYLEX')) do
    local r = read(member)
    if int(r.token) == ARGV[4] then
      n = n + 1
      if ARGV[5] == '1' then
        removeHolder(r)
        addTombstone(r.id, r.ttl, true)
        redis.call('PUBLISH', channels .. r.client, '-' .. r.id)
      else
        flag(r, 'b', true)
        store(r.mode, r)
      end
    end
  end
end
if n > 0 then grantNext() end
return done(n)
