-- KEYS[2]  the tombstone of the request
-- ARGV[2]  ttl (ms) of the tombstone to leave, or 0
-- ARGV[3]  the time (ms) for which the lock stays held, or 0
-- ARGV[4]  the command to publish with, beside PUBLISH: SPUBLISH, or '-'
-- ARGV[5]  the channel of the lock
-- ARGV[6]  its channel in the first generation of the protocol
--
-- Returns 1 if the request had the lock, else 0. The right to publish is not required: without it,
-- waiters ask again when the time that they last saw is over.
if tonumber(ARGV[2]) > 0 then redis.call('SET', KEYS[2], 'released', 'PX', ARGV[2]) end
if not mine() then return 0 end
if tonumber(ARGV[3]) > 0 then
  redis.call('PEXPIRE', KEYS[1], ARGV[3]) -- peers wait for what they saw: they look again
else
  redis.call('HDEL', KEYS[1], ARGV[1], 'dlock')
end
redis.pcall('PUBLISH', ARGV[5], '0')
redis.pcall('PUBLISH', ARGV[6], '0')
if ARGV[4] ~= '-' then redis.pcall(ARGV[4], ARGV[5], '0') end
return 1
