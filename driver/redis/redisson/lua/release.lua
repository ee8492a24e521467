-- KEYS[2]  the tombstone to leave, if any: while its slot moves in a Cluster, a node refuses a call
--          with a key that it does not have
-- ARGV[2]  ttl (ms) of the tombstone; 0: none
-- ARGV[3]  the command to publish with, beside PUBLISH: SPUBLISH, or '-'
-- ARGV[4]  the channel of the lock
-- ARGV[5]  its channel in the first generation of the protocol
--
-- Returns 1 if the request had the lock, else 0. The right to publish is not required: without it,
-- waiters ask again when the time that they last saw is over.
if tonumber(ARGV[2]) > 0 then redis.call('SET', KEYS[2], 'released', 'PX', ARGV[2]) end
local l = lock()
local m, live, gone = nil, {}, l.dead
for _, other in ipairs(l.live) do
  if other.id == ARGV[1] then
    m = other
    gone[#gone + 1] = m
  else
    live[#live + 1] = other
  end
end
if not m and #gone == 0 then return 0 end

local stands, exclusive = false, last(live, true) > 0
for _, other in ipairs(live) do stands = stands or other.stands end
if #live > 0 and not stands then redis.call('HSET', KEYS[1], live[1].field, '1') end
for _, other in ipairs(gone) do redis.call('HDEL', KEYS[1], name(other), other.field) end
local news = m and m.mode == 'x' and not exclusive -- waiters can share what is left
if #live == 0 then
  redis.call('HDEL', KEYS[1], 'dlock')
  news = true
elseif l.peers == 0 then
  local left, rest = redis.call('PTTL', KEYS[1]), last(live) - now
  if left < 0 or rest < left then
    redis.call('PEXPIRE', KEYS[1], int(rest))
    news = true -- peers wait for what they saw
  end
end
if news then
  redis.pcall('PUBLISH', ARGV[4], '0')
  redis.pcall('PUBLISH', ARGV[5], '0')
  if ARGV[3] ~= '-' then redis.pcall(ARGV[3], ARGV[4], '0') end
end
return m and 1 or 0
