-- ARGV[4]  the request as it is stored if it holds, up to its owner
-- ARGV[5]  ttl (µs)
-- ARGV[6]  client and flags
-- ARGV[7]  label
-- ARGV[8]  1: wait; 0: do not; -1: only resume what holds
--
-- Returns one of
--   {1, token}         granted
--   {0, µs, arrived, place}
--                      it waits. µs: until it is worth asking again, or 0; arrived: 1 if it did not
--                      stand there before
--   {2}                ask again at once; nothing stands there yet
--   {-1, why}          refused: held, lost, upgrade or conflict
--   {-1, held, label, µs}
--                      the same, with the label of a holder, and how long ago that one arrived

-- Most often nobody uses the name. Then little is needed.
if #head < 2 and ARGV[8] ~= '-1' then
  local id, limit, owner = string.match(ARGV[4], '^%a(%x+) %a (%d+) (%x+)$')
  if owner == id then
    local token, ttl = math.max(header and string.sub(header, 4) + 1 or 1, now), ARGV[5] + 0
    local since = string.format('%.0f', now)
    local text, expiry = token == now and since or string.format('%.0f', token), string.format('%016.0f', now + ttl)
    local member = ARGV[4] .. ' ' .. text .. ' ' .. expiry .. ' ' .. ARGV[5] .. ' ' .. ARGV[6] .. ' ' .. since .. ' ' .. ARGV[7]
    local ms = math.ceil(ttl / 1000) + ARGV[2]
    if header then keepFor(ms) end
    local index, permit = 'e' .. expiry .. id, limit ~= '0' and string.format('l%010.0f', limit) .. owner or nil
    if permit then
      redis.call('ZADD', KEYS[1], '0', FORMAT .. text, '0', index, '0', member, '0', permit)
    else
      redis.call('ZADD', KEYS[1], '0', FORMAT .. text, '0', index, '0', member)
    end
    if header then
      undo[1] = {'PEXPIRE', KEYS[1], '1'} -- who may not remove anything leaves nothing
      redis.call('ZREM', KEYS[1], header) -- the set must not be empty before
    else -- one without a time
      undo[1] = {'ZREM', KEYS[1], FORMAT .. text, index, member, permit}
      redis.call('PEXPIRE', KEYS[1], string.format('%.0f', ms))
    end
    return {1, token}
  end
end

--- include queue.lua

local id, mode, limit, owner = string.match(ARGV[4], '^%a(%x+) (%a) (%d+) (%x+)$')
local client, flags = string.match(ARGV[6], '^(%x+) (%S+)$')
local r = {id = id, owner = owner, mode = mode, limit = tonumber(limit), token = 0, ttl = tonumber(ARGV[5]),
  client = client, flags = flags, arrived = now, label = ARGV[7]}
local wait = ARGV[8] == '1'

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
  return first('e') and (first('l') ~= nil) ~= (r.mode == 's' and r.limit > 0)
end

-- join is for a request of an owner that holds.
local function join()
  local of = held(r.owner)
  if not of or has(of, 'b') then return {-1, 'lost'} end
  if conflicts() then return {-1, 'conflict'} end
  -- If there is an Exclusive request it is of this owner: nobody else can hold beside it.
  if r.mode == 'x' and not first('x') then return {-1, 'upgrade'} end
  r.limit, r.token, r.expiry = of.limit, of.token, now + r.ttl
  store(r.mode, r)
  add('j' .. r.owner .. r.id)
  return {1, r.token}
end

-- await writes the request among those who wait. It expires there unless its client asks again in
-- time.
local function await(place)
  r.token, r.expiry = place, now + keptFor(r.ttl)
  store('w', r)
end

-- refuse is for a request that does not wait, although it would have to.
local function refuse()
  local member = first('x') or first('s')
  local by = member and read(member)
  if not by or by.expiry <= now then return {-1, 'held'} end
  return {-1, 'held', by.label, math.max(0, now - by.arrived)}
end

-- keepWaiting is for a request that waits already: it stays, in its place.
local function keepWaiting(before)
  if not wait then
    removeWaiter(before)
    grantNext()
    return refuse()
  end
  r.arrived, r.member, r.index = before.arrived, before.member, before.index
  await(before.token)
  local more = grantNext()
  local h = holder(r.id)
  if h then return confirm(h) end
  return {0, more and 1 or untilExpiry(), 0, r.token}
end

-- arrive is for a request that does not stand there.
local function arrive()
  if grantNext() then return {2} end
  if conflicts() then return {-1, 'conflict'} end
  local behind = final('q')
  if not behind and admits(r) then
    grant(r, r.ttl)
    return {1, r.token}
  end
  if not wait then return refuse() end
  local left = untilExpiry()
  await(math.max(now, behind and time(behind) + 1 or 0, passedOver(r.client) + 1))
  add('q' .. digits(r.token) .. r.id)
  return {0, left, 1, r.token}
end

local function acquire()
  local h = holder(r.id)
  if h then return confirm(h) end
  if tombstone(r.id) or ARGV[8] == '-1' then return {-1, 'lost'} end
  if r.owner ~= r.id then return join() end
  if held(r.id) then return {-1, 'lost'} end -- it expired, and joins of its hold go on
  local before = waiter(r.id)
  if before then return keepWaiting(before) end
  return arrive()
end

return done(acquire())
