-- ARGV[1]  id of the holder, or of what joined it, which may have taken the holder's place on other
--          masters
-- ARGV[2]  1: by force, else 0
-- ARGV[3]  the prefix of a channel's name, which a client's ID follows
--
-- Returns 1 if it was there, else 0. The right to publish is not required: without it, the holder
-- learns of the break at its next renewal.
local h = read()
local k = readKept(h)
if not h or h.foreign or h.id ~= ARGV[1] and not (k and k.ids[ARGV[1]]) then return 0 end
redis.pcall('PUBLISH', ARGV[3] .. string.match(h.rest, '^%x+'), h.id)
if ARGV[2] == '1' then
  redis.call('SET', KEYS[2], 'broken', 'PX', h.ttl)
  delete()
else
  h.flag = 'b'
  write(h, 'KEEPTTL')
  if k then -- what joined it ends with it
    k.ids = {}
    writeKept(h, k)
  end
end
return 1
