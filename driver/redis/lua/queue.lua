-- The state of one name, and the rule of driver/queue.go restated. begin.lua has read it: raw.
--
-- KEYS[1]  hash: of each holder its request, field by ID; "t" the last token; "n" the last place given out, only while
--          somebody waits; "g" .. ID a tombstone: the time (µs) until which that ID creates nothing, negative if it was ended by force
-- KEYS[2]  sorted set: the IDs of those who wait, by place
-- KEYS[3]  hash: of each who waits its request, field by ID
-- ARGV[1]  channels: what stands before a client's ID in the name of its channel
-- ARGV[2]  how long (ms) the last token is kept after everybody is gone
-- ARGV[3]  the grant window (µs): how long a waiter that was granted has to confirm it
--
-- A request is a line of words, the label last: mode limit owner token expiry ttl client flags arrived label. Times are µs. Flags:
-- f fixed, b broken, u not confirmed yet, or "-".
local H, Q, W = KEYS[1], KEYS[2], KEYS[3]
local channels, keep, window = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])

local held, gone, last, places = {}, {}, 0, nil -- places: nil if nobody waits

local function int(x) return string.format('%.0f', x) end

local function foreign(field) error('the field ' .. field .. ' of ' .. H .. ' is not a request of dlock') end

local function read(id, line)
  local m, l, o, t, e, d, c, f, a, text =
    string.match(line, '^(%a) (%d+) (%x+) (%d+) (%d+) (%d+) (%x+) (%S+) (%d+) (.*)$')
  if not m then foreign(id) end
  return {id = id, mode = m, limit = tonumber(l), owner = o, token = tonumber(t), expiry = tonumber(e), ttl = tonumber(d),
    client = c, flags = f, arrived = tonumber(a), label = text}
end

local function line(r)
  return table.concat({r.mode, int(r.limit), r.owner, int(r.token), int(r.expiry), int(r.ttl), r.client, r.flags, int(r.arrived), r.label}, ' ')
end

local function has(r, flag) return string.find(r.flags, flag, 1, true) ~= nil end

local function flag(r, f, on)
  local s = string.gsub(string.gsub(r.flags, f, ''), '-', '')
  if on then s = s .. f end
  r.flags = s == '' and '-' or s
end

local function store(r) redis.call('HSET', H, r.id, line(r)) end

-- unwait takes a request out of those who wait.
local function unwait(id)
  redis.call('ZREM', Q, id)
  redis.call('HDEL', W, id)
end

-- awaiting returns a request of those who wait, unless it has expired: then it is not there any more.
local function awaiting(id)
  local text = places and redis.call('HGET', W, id)
  local r = text and read(id, text)
  if not r or r.expiry > now then return r end
  unwait(id)
end

-- bury makes sure that copies of the request which are still under way create nothing.
local function bury(id, ttl, forced)
  local before = gone[id] or 0
  local at = math.max(math.abs(before), now + ttl)
  if forced or before < 0 then at = -at end
  gone[id] = at
  redis.call('HSET', H, 'g' .. id, int(at))
end

-- admits: is r, whom nobody ahead waits for, compatible with all that is held?
local function admits(r)
  local limit, others, n = r.limit, {}, 0
  for _, h in pairs(held) do
    if h.owner ~= r.owner then
      if h.mode == 'x' or r.mode == 'x' then return false end
      if not others[h.owner] then
        others[h.owner] = true
        n = n + 1
      end
    end
    if h.limit > 0 and (limit == 0 or h.limit < limit) then limit = h.limit end
  end
  return limit == 0 or n < limit
end

local function grant(r, ttl)
  last = math.max(last + 1, now)
  r.token, r.expiry = last, now + ttl
  held[r.id] = r
  redis.call('HSET', H, 't', int(last), r.id, line(r))
end

-- settle grants whoever is next, as long as there is one, and tells the clients.
local function settle()
  while places do
    local id = redis.call('ZRANGE', Q, 0, 0)[1]
    if not id then
      redis.call('HDEL', H, 'n')
      redis.call('DEL', Q, W)
      places = nil
      return
    end
    local text = redis.call('HGET', W, id)
    local r = text and read(id, text)
    if not r or r.expiry <= now then
      unwait(id)
    elseif admits(r) then
      unwait(id)
      flag(r, 'u', true)
      grant(r, math.min(r.ttl, window))
      redis.call('PUBLISH', channels .. r.client, id)
      if r.mode == 'x' then return end -- nobody fits beside it
    else
      return
    end
  end
end

-- ours fails, before anything is touched, if the keys of those who wait are not ours.
local function ours()
  redis.call('ZCARD', Q)
  redis.call('HLEN', W)
end

-- load makes sense of what was read, drops what has expired, and grants whoever follows.
local function load()
  local dead, expired = {}, false
  for i = 1, #raw, 2 do
    local k, v = raw[i], raw[i + 1]
    if k == 't' then
      last = tonumber(v) or foreign(k)
    elseif k == 'n' then
      places = tonumber(v) or foreign(k)
      ours()
    elseif string.sub(k, 1, 1) == 'g' then
      local at = tonumber(v) or foreign(k)
      if math.abs(at) > now then gone[string.sub(k, 2)] = at else redis.call('HDEL', H, k) end
    else
      local r = read(k, v)
      if r.expiry > now then
        held[k] = r
      else
        expired = true
        redis.call('HDEL', H, k)
        if has(r, 'u') then dead[r.client] = true end
      end
    end
  end
  if next(dead) then -- a client that does not take its grant: the others that it has here go with it
    local all = redis.call('HGETALL', W)
    for i = 1, #all, 2 do
      if dead[read(all[i], all[i + 1]).client] then unwait(all[i]) end
    end
  end
  if expired then settle() end
end

-- no request that waits lives longer than this (ms) without being heard of: 25 h
local longest = 90000000

-- save makes the hash go when nobody uses the name any more.
local function save()
  local latest = now
  for _, r in pairs(held) do latest = math.max(latest, r.expiry) end
  for _, t in pairs(gone) do latest = math.max(latest, math.abs(t)) end
  local ms = math.ceil((latest - now) / 1000) + keep
  if places then ms = ms + longest end
  redis.call('PEXPIRE', H, ms)
end

-- hint says how long (µs) it is until the next of the holders expires.
local function hint()
  local at = nil
  for _, r in pairs(held) do
    if not at or r.expiry < at then at = r.expiry end
  end
  return at and at - now or 0
end

load()
