-- What every script begins with: the server's clock (µs), and what the hash of the name has.
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local raw = redis.call('HGETALL', KEYS[1])
