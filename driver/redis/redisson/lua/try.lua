-- KEYS[2]  the tombstone of the request
-- KEYS[3]  the counter of fencing tokens; none if the lock has no tokens
-- ARGV[2]  ttl (ms) that it is kept for
-- ARGV[3]  its mode, and f if it is fixed
-- ARGV[4]  its owner
-- ARGV[5]  its client
-- ARGV[6]  its ttl (ms)
-- ARGV[7]  its field
-- ARGV[8]  its label
--
-- Returns one of
--   {1, token}  it is a member, also if it was one before; the token is text, or '0'
--   {-1, why}   refused: released, lost, upgrade or unfenced
--   what holders returns, if others have it or it is no lock
if redis.call('EXISTS', KEYS[2]) == 1 then return {-1, 'released'} end
local ms, before = tonumber(ARGV[2]), mine()
if before then
  extend(before, ms)
  return {1, before.token}
end

local l = lock()
if l.type then return {-2, l.type} end
local mode, fixed = string.match(ARGV[3], '^([xs])(f?)$')
local m = {id = ARGV[1], mode = mode, fixed = fixed, owner = ARGV[4], client = ARGV[5],
  since = int(now), ttl = ARGV[6], expiry = now + ms, token = '0', field = ARGV[7], label = ARGV[8]}

local hold, covered, standing -- the owner's; whether a mode of it covers this; any member's field
local blocks = {} -- members of other owners
for _, other in ipairs(l.live) do
  standing = standing or other.stands
  if other.owner == m.owner then
    hold, covered = other, covered or other.mode == 'x' or m.mode == 's'
  elseif other.mode == 'x' or m.mode == 'x' then
    blocks[#blocks + 1] = other
  end
end
if m.owner ~= m.id then
  if not hold then return {-1, 'lost'} end
  if not covered then return {-1, 'upgrade'} end
  if KEYS[3] and hold.token == '0' then return {-1, 'unfenced'} end
  m.token = hold.token
else
  if hold then return {-1, 'lost'} end -- it expired or was released, and joins of its hold stand
  if #blocks > 0 then -- the first is enough for the error
    return holders(l, {blocks[1]}, last(l.live, m.mode == 's') - now)
  end
  if l.peers > 0 then return holders(l, {}, 0) end
  if KEYS[3] then
    redis.call('INCRBY', KEYS[3], '1')
    m.token = redis.call('GET', KEYS[3]) -- Lua's numbers are exact up to 2^53
  end
end

-- The fields come before those that have expired go: the key is there all the time.
redis.call('HSET', KEYS[1], 'dlock', FORMAT, name(m), write(m))
if not standing then redis.call('HSET', KEYS[1], (l.live[1] or m).field, '1') end
for _, gone in ipairs(l.dead) do
  if gone.id ~= m.id then redis.call('HDEL', KEYS[1], name(gone), gone.field) end
end
local set
if #l.live > 0 then
  set = lasts(ms)
else
  set = redis.pcall('PEXPIRE', KEYS[1], ARGV[2])
end
if type(set) == 'table' then -- the right is missing: the lock must not stay for ever
  redis.call('HDEL', KEYS[1], name(m), m.field)
  if #l.live == 0 then redis.call('HDEL', KEYS[1], 'dlock') end
  return set
end
return {1, m.token}
