-- ARGV[1]  owner: the request that began the hold, which may be gone
-- ARGV[2]  1: by force, else 0
-- ARGV[3]  the prefix of a channel's name, which a client's ID follows
--
-- Returns how many members of the hold were there. By force they are removed, and a tombstone keeps
-- the hold from beginning anew; else they are marked. The right to publish is not required: without
-- it, a client learns of the break at its next renewal.
local rest, n, ttl = {}, 0, 1
for _, m in ipairs(members) do
  if m.owner == ARGV[1] then
    n, ttl = n + 1, math.max(ttl, m.ttl)
    redis.pcall('PUBLISH', ARGV[3] .. m.client, m.id)
    if not broken(m) then m.flags = 'b' .. string.gsub(m.flags, '-', '') end
  end
  if m.owner ~= ARGV[1] or ARGV[2] ~= '1' then rest[#rest + 1] = m end
end
if n == 0 then return 0 end
if ARGV[2] == '1' then redis.call('SET', KEYS[2], 'broken', 'PX', int(ttl)) end
members = rest
write()
return n
