-- The beginning of every script.
--
-- KEYS[1]  the lock, a hash. A hold of dlock has
--            dlock     FORMAT
--            dlock ID  a member, which is a request of dlock: its mode (x exclusive, s shared;
--                      then f if it is fixed), owner, client, since when (ms) it holds, its TTL
--                      (ms), when (ms) it expires, its token or 0, the length of its field, its
--                      field, its label
--            a field   that of one member to 1, for peers
--          One of a peer has only fields of its own.
-- ARGV[1]  the ID of the request

local FORMAT = '1'

-- The most fields of a peer's hash that are read: a key that is no lock may have millions.
local MOST = 8

local function hasOtherType(reply)
  if type(reply) ~= 'table' or not reply.err then return false end
  if not string.find(reply.err, 'WRONGTYPE', 1, true) then error(reply) end
  return true
end

-- now is the server's clock (ms). It stands still while a script runs.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local function int(x) return string.format('%.0f', x) end

-- read returns the member that a field has, or nil.
local function read(id, text)
  local mode, fixed, owner, client, since, ttl, expiry, token, length, rest = string.match(text,
    '^([xs])(f?) (%x+) (%x+) (%d+) (%d+) (%d+) (%d+) (%d+) (.*)$')
  if not mode then return nil end
  return {id = id, mode = mode, fixed = fixed, owner = owner, client = client, since = since,
    ttl = ttl, expiry = tonumber(expiry), token = token, field = string.sub(rest, 1, length),
    label = string.sub(rest, length + 2), text = text}
end

local function name(m) return 'dlock ' .. m.id end

-- write returns the text of a member's field.
local function write(m)
  return table.concat({m.mode .. m.fixed, m.owner, m.client, m.since, m.ttl, int(m.expiry),
    m.token, #m.field, m.field, m.label}, ' ')
end

-- mine returns the member that the request is, or nil. A key of another type has none.
local function mine()
  local text = redis.pcall('HGET', KEYS[1], 'dlock ' .. ARGV[1])
  if not text or hasOtherType(text) then return nil end
  local m = read(ARGV[1], text)
  return m and m.expiry > now and m or nil
end

-- lock reads the key:
--   type    its type, if it is no hash; then there is nothing else
--   live    the members that have not expired
--   dead    those that have
--   size    how many fields there are
--   peers   how many of them are not of dlock, but a peer's or of anything else
--   fields  those and their values; none if it is no hold of dlock and has more than MOST
local function lock()
  local l = {live = {}, dead = {}, peers = 0, fields = {}}
  local format = redis.pcall('HGET', KEYS[1], 'dlock')
  if hasOtherType(format) then
    l.type = redis.call('TYPE', KEYS[1]).ok
    return l
  end
  l.size = redis.call('HLEN', KEYS[1])
  l.peers = l.size
  if format ~= FORMAT and l.size > MOST then return l end
  local all, other = redis.call('HGETALL', KEYS[1]), {}
  for i = 1, #all, 2 do
    local id = format == FORMAT and string.match(all[i], '^dlock (%x+)$')
    local m = id and read(id, all[i + 1])
    if m then
      local list = m.expiry > now and l.live or l.dead
      list[#list + 1] = m
    elseif all[i] ~= 'dlock' or format ~= FORMAT then
      other[all[i]] = all[i + 1]
    end
  end
  for _, list in ipairs({l.live, l.dead}) do
    for _, m in ipairs(list) do
      m.stands, other[m.field] = other[m.field] ~= nil, nil
    end
  end
  l.peers = 0
  for i = 1, #all, 2 do
    if other[all[i]] then
      l.peers = l.peers + 1
      l.fields[2 * l.peers - 1], l.fields[2 * l.peers] = all[i], all[i + 1]
    end
  end
  return l
end

-- last returns when (ms) the last of the members expires; of the exclusive ones, if that is asked.
local function last(members, exclusive)
  local at = 0
  for _, m in ipairs(members) do
    if (m.mode == 'x' or not exclusive) and m.expiry > at then at = m.expiry end
  end
  return at
end

-- lasts makes the key last until all members have expired, and shortens nothing. ms is the time
-- that one of them has.
local function lasts(ms)
  local left = redis.call('PTTL', KEYS[1])
  if left < 0 then ms = math.max(ms, last(lock().live) - now) end -- it lost its expiry
  if left < ms then return redis.pcall('PEXPIRE', KEYS[1], int(ms)) end
end

-- extend makes a member last for at least that long (ms), and shortens nothing.
local function extend(m, ms)
  if m.expiry < now + ms then
    m.expiry = now + ms
    redis.call('HSET', KEYS[1], name(m), write(m))
  end
  local failed = lasts(ms)
  if type(failed) == 'table' then error(failed) end
end

-- holders returns what stands under a key:
--   {}          nothing: the lock is free
--   {0, ms, now, n, field, value, …}
--               holders: how long they have the lock, or -1 if it has no end; the clock; how many
--               fields there are; those of members, or else, if they are few, of a peer
--   {-2, type}  no lock of this format: the key is of that type
local function holders(l, members, ms)
  if l.type then return {-2, l.type} end
  if #members == 0 and l.peers == 0 then return {} end
  local reply = {0, ms, int(now), l.size}
  if #members == 0 then
    reply[2] = redis.call('PTTL', KEYS[1])
    for _, text in ipairs(l.fields) do reply[#reply + 1] = text end
  end
  for _, m in ipairs(members) do
    reply[#reply + 1] = name(m)
    reply[#reply + 1] = m.text
  end
  return reply
end
