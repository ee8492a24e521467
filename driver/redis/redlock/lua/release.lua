-- ARGV[1]  id
-- ARGV[2]  ttl (ms) of the tombstone to leave, or 0
--
-- Returns 1 if it was there and not broken, else 0. When a holder is released, the one of its joins
-- that ends last takes its place.
local h = read()
local k = readKept(h)
if tonumber(ARGV[2]) > 0 then redis.call('SET', KEYS[2], 'released', 'PX', ARGV[2]) end
if not h then return 0 end
if h.id ~= ARGV[1] then
  if not k or not k.ids[ARGV[1]] then return 0 end
  k.ids[ARGV[1]] = nil
  writeKept(h, k)
  return 1
end
delete()
if h.flag == 'b' then return 0 end
local id, ms
if k then id, ms = last(k) end
if not id then return 1 end
k.ids[id] = nil
local left = int(math.max(1, ms - now())) -- time passes while the script runs
local next = {id = id, flag = '-', ttl = left, since = h.since, rest = h.rest}
write(next, 'PX', left)
k.stop = ms
if last(k) then writeKept(next, k) end
return 1
