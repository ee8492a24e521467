-- ARGV[4]   id
-- ARGV[5]   owner
-- ARGV[6]   mode
-- ARGV[7]   limit
-- ARGV[8]   ttl (µs)
-- ARGV[9]   client
-- ARGV[10]  flags
-- ARGV[11]  1: wait; 0: do not; -1: only resume what holds
-- ARGV[12]  label
--
-- Returns one of
--   {1, token}         granted
--   {0, µs, arrived}   it waits. µs: until it is worth asking again, or 0; arrived: 1 if it did not
--                      stand there before
--   {2}                ask again at once; nothing stands there yet
--   {-1, why}          refused: held, lost, upgrade or conflict

-- Most often nobody uses the name. Then little is needed.
if #head < 2 and ARGV[5] == ARGV[4] and ARGV[11] ~= '-1' then
  local token, ttl = math.max(header and string.sub(header, 4) + 1 or 1, now), tonumber(ARGV[8])
  local text = string.format('%.0f', token)
  local members = {'ZADD', KEYS[1], 0, FORMAT .. text, 0, string.format('e%016.0f%s', now + ttl, ARGV[4]),
    0, string.format('%s%s %s %s %s %s %.0f %s %s %s %.0f %s', ARGV[6], ARGV[4], ARGV[6], ARGV[7], ARGV[5], text, now + ttl, ARGV[8], ARGV[9],
      ARGV[10], now, ARGV[12])}
  if ARGV[7] ~= '0' then
    members[9], members[10] = 0, string.format('l%010.0f%s', ARGV[7], ARGV[5])
  end
  redis.call(unpack(members))
  if header then redis.call('ZREM', KEYS[1], header) end -- the set must not be empty before
  redis.call('PEXPIRE', KEYS[1], math.ceil(ttl / 1000) + ARGV[2])
  return {1, token}
end

--- include queue.lua

local r = {id = ARGV[4], owner = ARGV[5], mode = ARGV[6], limit = tonumber(ARGV[7]), token = 0, ttl = tonumber(ARGV[8]),
  client = ARGV[9], flags = ARGV[10], arrived = now, label = ARGV[12]}
local wait = ARGV[11] == '1'

-- confirm begins the TTL of a request that holds again.
local function confirm(h)
  if has(h, 'b') then return {-1, 'lost'} end
  h.expiry, h.ttl = now + r.ttl, r.ttl
  flag(h, 'u', false)
  store(h.mode, h)
  return {1, h.token}
end

-- conflicts reports whether the name is in use as the other kind, a lock or a semaphore.
local function conflicts()
  return least('e', 'f') and (least('l', 'm') ~= nil) ~= (r.mode == 's' and r.limit > 0)
end

-- join is for a request of an owner that holds.
local function join()
  local of = held(r.owner)
  if not of or has(of, 'b') then return {-1, 'lost'} end
  if conflicts() then return {-1, 'conflict'} end
  -- If there is an Exclusive request it is of this owner: nobody else can hold beside it.
  if r.mode == 'x' and not least('x', 'y') then return {-1, 'upgrade'} end
  r.limit, r.token, r.expiry = of.limit, of.token, now + r.ttl
  store(r.mode, r)
  write('ZADD', S, 0, 'j' .. r.owner .. r.id)
  return {1, r.token}
end

-- await writes the request among those who wait. It expires there unless its client asks again in
-- time (keptFor in wait.go has the same time).
local function await(place)
  r.token, r.expiry = place, now + math.max(r.ttl, 3000000)
  store('w', r)
end

-- keepWaiting is for a request that waits already: it stays, in its place.
local function keepWaiting(before)
  if not wait then
    removeWaiter(before)
    grantNext()
    return {-1, 'held'}
  end
  r.arrived, r.member, r.index = before.arrived, before.member, before.index
  await(before.token)
  local more = grantNext()
  local h = holder(r.id)
  if h then return confirm(h) end
  return {0, more and 1 or untilExpiry(), 0}
end

-- arrive is for a request that does not stand there.
local function arrive()
  if grantNext() then return {2} end
  if conflicts() then return {-1, 'conflict'} end
  local final = greatest('q', 'r')
  if not final and admits(r) then
    grant(r, r.ttl)
    return {1, r.token}
  end
  if not wait then return {-1, 'held'} end
  await(math.max(now, final and time(final) + 1 or 0, passedOver(r.client) + 1))
  write('ZADD', S, 0, 'q' .. digits(r.token) .. r.id)
  return {0, untilExpiry(), 1}
end

local function acquire()
  local h = holder(r.id)
  if h then return confirm(h) end
  if tombstone(r.id) or ARGV[11] == '-1' then return {-1, 'lost'} end
  if r.owner ~= r.id then return join() end
  if held(r.id) then return {-1, 'lost'} end -- it expired, and joins of its hold go on
  local before = waiter(r.id)
  if before then return keepWaiting(before) end
  return arrive()
end

return done(acquire())
