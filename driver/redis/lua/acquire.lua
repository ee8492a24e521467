-- ARGV[4] id  [5] owner  [6] mode  [7] limit  [8] ttl (µs)  [9] client  [10] flags  [11] 1: wait; 0: do not; -1: only resume what holds
-- [12] label. Returns {1, token} granted, {0, µs until a look is worth it, 1: arrived now, 0: before} waiting, or {-1, why not}.

-- Most often nobody uses the name, and little is needed.
if (#raw == 0 or #raw == 2 and raw[1] == 't') and ARGV[5] == ARGV[4] and ARGV[11] ~= '-1' then
  local token, ttl = math.max((tonumber(raw[2]) or 0) + 1, now), tonumber(ARGV[8])
  local text = string.format('%.0f', token)
  redis.call('HSET', KEYS[1], 't', text, ARGV[4], string.format('%s %s %s %s %.0f %s %s %s %.0f %s',
    ARGV[6], ARGV[7], ARGV[5], text, now + ttl, ARGV[8], ARGV[9], ARGV[10], now, ARGV[12]))
  redis.call('PEXPIRE', KEYS[1], math.ceil(ttl / 1000) + ARGV[2])
  return {1, token}
end

--- include queue.lua

local r = {id = ARGV[4], owner = ARGV[5], mode = ARGV[6], limit = tonumber(ARGV[7]), token = 0, ttl = tonumber(ARGV[8]),
  client = ARGV[9], flags = ARGV[10], arrived = now, label = ARGV[12]}
local wait = ARGV[11] == '1'

local function granted()
  save()
  return {1, r.token}
end

local function confirm()
  local h = held[r.id]
  if has(h, 'b') then return {-1, 'lost'} end
  h.expiry, h.ttl = now + r.ttl, r.ttl
  flag(h, 'u', false)
  store(h)
  r = h
  return granted()
end

local function conflicts()
  local _, first = next(held)
  return first and (first.mode == 's' and first.limit > 0) ~= (r.mode == 's' and r.limit > 0)
end

-- await writes the request among those who wait. It expires there unless wait.go asks again in time.
local function await()
  r.expiry = now + math.max(r.ttl, 3000000)
  redis.call('HSET', W, r.id, line(r))
  local ms = math.ceil((r.expiry - now) / 1000) + longest
  redis.call('PEXPIRE', Q, ms)
  redis.call('PEXPIRE', W, ms)
end

if held[r.id] then return confirm() end
if gone[r.id] or ARGV[11] == '-1' then return {-1, 'lost'} end

if r.owner ~= r.id then -- a join
  local is, covered, broken, limit = false, false, false, 0
  for _, h in pairs(held) do
    if h.owner == r.owner then
      if not is then is, limit, r.token = true, h.limit, h.token end
      if h.limit > 0 and (limit == 0 or h.limit < limit) then limit = h.limit end
      broken = broken or has(h, 'b')
      covered = covered or h.mode == 'x' or r.mode == 's'
    end
  end
  if not is or broken then return {-1, 'lost'} end
  if conflicts() then return {-1, 'conflict'} end
  if not covered then return {-1, 'upgrade'} end
  r.limit, r.expiry = limit, now + r.ttl
  held[r.id] = r
  store(r)
  return granted()
end

for _, h in pairs(held) do
  if h.owner == r.id then return {-1, 'lost'} end -- it expired, and joins of its hold go on
end

local before = awaiting(r.id)
if before then -- it waits already: keep it alive, in its place
  if not wait then
    unwait(r.id)
    settle()
    save()
    return {-1, 'held'}
  end
  r.arrived = before.arrived
  await()
  settle()
  if held[r.id] then return confirm() end
else
  settle()
  if conflicts() then return {-1, 'conflict'} end
  if not places and admits(r) then
    grant(r, r.ttl)
    return granted()
  end
  if not wait then return {-1, 'held'} end
  if not places then
    ours()
    redis.call('DEL', Q, W) -- what an evicted or deleted hash may have left
    places = 0
  end
  places = places + 1
  redis.call('HSET', H, 'n', int(places))
  redis.call('ZADD', Q, places, r.id)
  await()
end
save()
return {0, hint(), before and 0 or 1}
