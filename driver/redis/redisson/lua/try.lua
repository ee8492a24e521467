-- KEYS[2]  the tombstone of the request
-- KEYS[3]  the counter of fencing tokens; none if the lock has no tokens
-- ARGV[2]  ttl (ms) of the key
-- ARGV[3]  the ID and the client of the request
-- ARGV[4]  its ttl (ms) and its label
--
-- Returns one of
--   {1, token}  it has the lock, also if it had it before; the token is text, or ''
--   {-1}        it was released, and takes nothing any more
--   what holder returns, if another one has it or it is no lock
if redis.call('EXISTS', KEYS[2]) == 1 then return {-1} end
if mine() then
  extend(ARGV[2])
  local token = KEYS[3] and redis.call('GET', KEYS[3]) or ''
  if KEYS[3] and token == '' then
    error('the key ' .. KEYS[3] .. ' was deleted while its lock was held')
  end
  return {1, token}
end
local other = holder()
if #other > 0 then return other end
local token = ''
if KEYS[3] then
  redis.call('INCRBY', KEYS[3], '1')
  token = redis.call('GET', KEYS[3]) -- Lua's numbers are exact up to 2^53
end
redis.call('HSET', KEYS[1], ARGV[1], '1', 'dlock', ARGV[3] .. ' ' .. now() .. ' ' .. ARGV[4])
local set = redis.pcall('PEXPIRE', KEYS[1], ARGV[2])
if type(set) == 'table' then -- the right is missing: the lock must not stay for ever
  redis.call('HDEL', KEYS[1], ARGV[1], 'dlock')
  return set
end
return {1, token}
