-- ARGV[4] id [5] owner [6] mode [7] limit [8] ttl (µs) [9] client [10] flags [11] 1: wait; 0: do
-- not; -1: only resume what holds [12] label. Returns {1, token} granted, {0, µs until a look is
-- worth it, 1: arrived now, 0: before} waiting, {2} ask again at once, nothing stands, or {-1, why
-- not}.

-- Most often nobody uses the name, and little is needed.
if #head < 2 and ARGV[5] == ARGV[4] and ARGV[11] ~= '-1' then
  local token, ttl = math.max(header and string.sub(header, 4) + 1 or 1, now), tonumber(ARGV[8])
  local text = string.format('%.0f', token)
  local members = {'ZADD', KEYS[1], 0, '!1 ' .. text, 0, string.format('e%016.0f%s', now + ttl, ARGV[4]),
    0, string.format('%s%s %s %s %s %s %.0f %s %s %s %.0f %s', ARGV[6], ARGV[4], ARGV[6], ARGV[7], ARGV[5], text, now + ttl, ARGV[8], ARGV[9],
      ARGV[10], now, ARGV[12])}
  if ARGV[7] ~= '0' then
    members[9], members[10] = 0, string.format('l%010.0f%s', ARGV[7], ARGV[5])
  end
  redis.call(unpack(members))
  if header then redis.call('ZREM', KEYS[1], header) end -- after that: queue.lua has why
  redis.call('PEXPIRE', KEYS[1], math.ceil(ttl / 1000) + ARGV[2])
  return {1, token}
end

--- include queue.lua

local r = {id = ARGV[4], owner = ARGV[5], mode = ARGV[6], limit = tonumber(ARGV[7]), token = 0, ttl = tonumber(ARGV[8]),
  client = ARGV[9], flags = ARGV[10], arrived = now, label = ARGV[12]}
local wait = ARGV[11] == '1'

local function confirm(h)
  if has(h, 'b') then return {-1, 'lost'} end
  h.expiry, h.ttl = now + r.ttl, r.ttl
  flag(h, 'u', false)
  store(h.mode, h)
  return {1, h.token}
end

local function conflicts()
  return least('e', 'f') and (least('l', 'm') ~= nil) ~= (r.mode == 's' and r.limit > 0)
end

local function join()
  local of = any(r.owner)
  if not of or has(of, 'b') then return {-1, 'lost'} end
  if conflicts() then return {-1, 'conflict'} end
  if r.mode == 'x' and not least('x', 'y') then return {-1, 'upgrade'} end -- nobody else can hold one
  r.limit, r.token, r.expiry = of.limit, of.token, now + r.ttl
  store(r.mode, r)
  write('ZADD', S, 0, 'j' .. r.owner .. r.id)
  return {1, r.token}
end

-- await writes the request among those who wait. It expires there unless wait.go asks again in
-- time.
local function await(place)
  r.token, r.expiry = place, now + math.max(r.ttl, 3000000)
  store('w', r)
end

-- ask is for a request that waits already: it is kept alive, in its place.
local function ask(before)
  if not wait then
    unwait(before)
    settle()
    return {-1, 'held'}
  end
  r.arrived, r.member, r.index = before.arrived, before.member, before.index
  await(before.token)
  local more = settle()
  local h = holder(r.id)
  if h then return confirm(h) end
  return {0, more and 1 or hint(), 0}
end

local function arrive()
  if settle() then return {2} end
  if conflicts() then return {-1, 'conflict'} end
  local final = greatest('q', 'r')
  if not final and admits(r) then
    grant(r, r.ttl)
    return {1, r.token}
  end
  if not wait then return {-1, 'held'} end
  await(math.max(now, final and time(final) + 1 or 0, passed(r.client) + 1))
  write('ZADD', S, 0, 'q' .. digits(r.token) .. r.id)
  return {0, hint(), 1}
end

local function acquire()
  local h = holder(r.id)
  if h then return confirm(h) end
  if gone(r.id) or ARGV[11] == '-1' then return {-1, 'lost'} end
  if r.owner ~= r.id then return join() end
  if any(r.id) then return {-1, 'lost'} end -- it expired, and joins of its hold go on
  local before = awaiting(r.id)
  if before then return ask(before) end
  return arrive()
end

return done(acquire())
