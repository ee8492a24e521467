-- ARGV[1]  id
-- ARGV[2]  ttl (ms)
--
-- Returns 1 if it holds, else 0. It never creates anything.
local h = read()
if not h or h.flag == 'b' then return 0 end
if h.id == ARGV[1] then return extend(h, ARGV[2]) end
local k = readKept(h)
if not k or not k.ids[ARGV[1]] then return 0 end
k.ids[ARGV[1]] = now() + ARGV[2] + 1
return writeKept(h, k)
