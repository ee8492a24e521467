-- ARGV[4]  id
-- ARGV[5]  ttl (µs)
-- ARGV[6]  client
-- ARGV[7]  label
-- ARGV[8]  letters: f it is fixed; w it waits; r only resume a hold. For a join, followed by a
--          space and its owner
-- ARGV[9]  exclusive, shared, or "permit of" and the limit
--
-- Returns one of
--   {1, token}         granted
--   {0, µs, arrived, place}
--                      it waits. µs: when it is worth asking again, or 0; arrived: 1 if it did
--                      not stand there before
--   {2}                ask again at once; nothing stands there yet
--   {-1, why}          refused: held, lost, upgrade or conflict
--   {-1, held, label, µs}
--                      the same, with the label of a holder, and the time since that one arrived

local how = ARGV[8]

-- Most often the lock is free and there is no set. Then little is needed.
if not queue and string.find(how, '^w?f?$') and (not holder or plain and till <= clock()) then
  local now = clock()
  local token, since, till = math.max(last + 1, now), int(now), now + ARGV[5]
  local longer = kept < till + keep
  if longer then kept = till + keep * 1.25 end
  redis.call('HSET', H, 'format', FORMAT, 'token', token == now and since or int(token),
    'holder', ARGV[4], 'until', int(till), 'flags', string.find(how, 'f') and 'fixed' or '-',
    'queue', '0', 'kept', int(kept), 'client', ARGV[6], 'label', ARGV[7], 'ttl', ARGV[5],
    'since', since, 'mode', ARGV[9])
  if longer then
    undo[1] = format and {'HSET', H, 'holder', '', 'kept', '0'} or {'DEL', H}
    redis.call('PEXPIRE', H, int(math.ceil((kept - now) / 1000)))
  end
  return {1, token}
end

--- include queue.lua

local letters, owner = string.match(how, '^(%a*) ?(%x*)$')
local function is(letter) return string.find(letters, letter, 1, true) ~= nil end
local wait, resumes = is('w'), is('r')
local r = {id = ARGV[4], owner = owner ~= '' and owner or ARGV[4],
  mode = MODES[ARGV[9]] or 's', limit = tonumber(string.match(ARGV[9], '%d+')) or 0, token = 0,
  ttl = tonumber(ARGV[5]), client = ARGV[6],
  flags = is('f') and 'fixed' or '-', arrived = now, label = ARGV[7]}

-- confirm restarts the TTL of a request that holds.
local function confirm(h)
  if has(h, 'broken') then return {-1, 'lost'} end
  h.expiry, h.ttl = now + r.ttl, r.ttl
  flag(h, 'unconfirmed', false)
  store(h.mode, h)
  return {1, h.token}
end

-- conflicts reports whether the name is in use as the other kind: a lock instead of a semaphore, or
-- the other way round.
local function conflicts()
  return soonest() and (held and held.limit > 0 or first('l') ~= nil) ~= (r.limit > 0)
end

-- join is for a request of an owner that holds.
local function join()
  local of = ofOwner(r.owner)
  if not of or has(of, 'broken') then return {-1, 'lost'} end
  if conflicts() then return {-1, 'conflict'} end
  -- An Exclusive request that holds is of this owner, since no other can hold beside it.
  if r.mode == 'x' and not (held and held.mode == 'x' or first('x')) then return {-1, 'upgrade'} end
  toSet()
  r.limit, r.token, r.expiry = of.limit, of.token, now + r.ttl
  store(r.mode, r, 'j' .. r.owner .. r.id)
  return {1, r.token}
end

-- await writes the request as a waiter. It expires there unless its client asks again in time.
local function await(place)
  r.token, r.expiry = place, now + keptFor(r.ttl)
  store('w', r, 'q' .. digits(place) .. r.id)
end

-- refuse is for a request that would have to wait and does not.
local function refuse()
  local member = first('x') or first('s')
  local by = held or member and read(member)
  if not by or by.expiry <= now then return {-1, 'held'} end
  return {-1, 'held', by.label, math.max(0, now - by.arrived)}
end

-- keepWaiting is for a request that already waits: it stays in its place.
local function keepWaiting(before)
  if not wait then
    removeWaiter(before)
    grantNext()
    return refuse()
  end
  r.arrived, r.member, r.index = before.arrived, before.member, before.index
  await(before.token)
  local more = grantNext()
  local h = holds(r.id)
  if h then return confirm(h) end
  return {0, more and 1 or untilExpiry(), 0, r.token}
end

-- arrive is for a request that does not stand there yet.
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
  return {0, left, 1, r.token}
end

local function acquire()
  local h = holds(r.id)
  if h then return confirm(h) end
  if tombstone(r.id) or resumes then return {-1, 'lost'} end
  if r.owner ~= r.id then return join() end
  if ofOwner(r.id) then return {-1, 'lost'} end -- it expired, and joins of its hold still stand
  local before = waiter(r.id)
  if before then return keepWaiting(before) end
  return arrive()
end

return done(acquire())
