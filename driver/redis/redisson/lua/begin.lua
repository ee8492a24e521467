-- The beginning of every script.
--
-- KEYS[1]  the lock, a hash: the field of the holder to its count. A hold of dlock has one more:
--            dlock  its request: ID client since(ms) ttl(ms) label
-- ARGV[1]  the field of the request

-- mine reports whether the request has the lock. It does not have a key of another type.
local function mine()
  local has = redis.pcall('HEXISTS', KEYS[1], ARGV[1])
  if type(has) == 'table' and not string.find(has.err, 'WRONGTYPE', 1, true) then error(has) end
  return has == 1
end

-- extend makes the lock last for at least that long (ms), and shortens nothing.
local function extend(ms)
  if redis.call('PTTL', KEYS[1]) < tonumber(ms) then redis.call('PEXPIRE', KEYS[1], ms) end
end

-- now returns the server's clock (ms) as text.
local function now()
  local t = redis.call('TIME')
  return string.format('%.0f', t[1] * 1000 + math.floor(t[2] / 1000))
end

-- The most fields of a hash that are read: a key that is no lock may have millions.
local MOST = 8

-- holder returns what stands under the key, which the request does not have:
--   {}          nothing: the lock is free
--   {0, ms, now, n, field, value, …}
--               a holder: the time left to it, or -1 if it has no end; the clock; the number of
--               fields; the fields themselves if they are few
--   {-2, type}  no lock of this format: the key is of that type
local function holder()
  local n = redis.pcall('HLEN', KEYS[1])
  if type(n) == 'table' then
    if not string.find(n.err, 'WRONGTYPE', 1, true) then error(n) end
    return {-2, redis.call('TYPE', KEYS[1]).ok}
  end
  if n == 0 then return {} end
  local reply = {0, redis.call('PTTL', KEYS[1]), now(), n}
  if n <= MOST then
    for _, text in ipairs(redis.call('HGETALL', KEYS[1])) do reply[#reply + 1] = text end
  end
  return reply
end
