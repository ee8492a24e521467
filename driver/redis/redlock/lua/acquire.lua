-- ARGV[1]  id
-- ARGV[2]  owner: the id, or of a join the request that began the hold
-- ARGV[3]  mode: x or s
-- ARGV[4]  flags: f it is fixed, else -
-- ARGV[5]  ttl (ms)
-- ARGV[6]  client
-- ARGV[7]  label
-- ARGV[8]  the minimum uptime (s), or 0
--
-- Returns one of
--   {1}      granted, also if the same request already stands there
--   {0, ms, id, label, ms}
--            held by another one: the time until it may be free, and the time since the other one
--            was granted
--   {0, ms, value}
--            held by a peer: the time left to it, or -1 if it has no expiry
--   {-1}     refused for ever: it was released, or its hold was broken or is not there
--   {-2, s}  refused: the server has been up for only that long
--   {-3}     refused: it is a join, exclusive, and its hold is only shared
local id, owner, mode = ARGV[1], ARGV[2], ARGV[3]
if redis.call('EXISTS', KEYS[2]) == 1 then return {-1} end
local m = find(id)
if m then
  if broken(m) then return {-1} end
  begin(m, ARGV[5])
  write()
  return {1}
end
if alien == id then
  redis.call('SET', KEYS[1], id, 'PX', int(math.max(kept(ARGV[5]), redis.call('PTTL', KEYS[1]))))
  return {1}
end

-- blocks: the member that may be the last to make way for it, and one to name. Masters with the
-- same members name the same one.
local of, covered, blocks, by = false, false, nil, nil
for _, m in ipairs(members) do
  if m.owner == owner then
    if broken(m) then return {-1} end
    of = true
    covered = covered or m.mode == 'x' or mode == 's'
  elseif m.mode == 'x' or mode == 'x' then
    if not blocks or m.till > blocks.till then blocks = m end
    if not by or m.id < by.id then by = m end
  end
end
if owner == id and of then return {-1} end -- it expired, and joins of its hold still stand
if owner ~= id and not of then return {-1} end
if owner ~= id and not covered then return {-3} end
if alien then return {0, redis.call('PTTL', KEYS[1]), alien} end
if by then
  -- a key that has lost its expiry, as by PERSIST or RESTORE, gets one again
  if redis.call('PTTL', KEYS[1]) < 0 then write() end
  return {0, blocks.till - now, by.id, by.label, math.max(0, now - by.since)}
end
if tonumber(ARGV[8]) > 0 then
  local up = tonumber(string.match(redis.call('INFO', 'server'), 'uptime_in_seconds:(%d+)'))
  if up < tonumber(ARGV[8]) then return {-2, up} end
end
m = {id = id, owner = owner, mode = mode, flags = ARGV[4], since = int(now), client = ARGV[6], label = ARGV[7]}
begin(m, ARGV[5])
members[#members + 1] = m
write()
return {1}
