-- What joined the holder, in both layouts:
--
-- KEYS[3]  the fixed requests that joined the holder, a string that expires with the last of them:
--          !1 HOLDER end(ms) ID until(ms) ID until(ms) …
--          HOLDER is the ID of the holder, and end is when that expires by itself. The key of the
--          holder expires with the last of them all.

-- readKept returns what joined the holder and has not ended: when the holder itself ends, and when
-- each ID does; nil if nothing joined. It ignores what joined an earlier holder.
local function readKept(h)
  local text = h and redis.call('GET', KEYS[3])
  if not text then return nil end
  local format, holder, stop, rest = string.match(text, '^(!%d+) (%x+) (%d+)(.*)$')
  if format ~= FORMAT or holder ~= h.id then return nil end
  local k, t = {stop = tonumber(stop), ids = {}}, now()
  for id, ms in string.gmatch(rest, ' (%x+) (%d+)') do
    if tonumber(ms) > t then k.ids[id] = tonumber(ms) end
  end
  return k
end

-- last returns the ID that ends last, and when; nil if there is none.
local function last(k)
  local id, ms
  for i, m in pairs(k.ids) do
    if not ms or m > ms then id, ms = i, m end
  end
  return id, ms
end

-- writeKept stores what joined the holder, and makes both keys expire with the last of them all.
-- Time passes while a script runs: if all of them have ended by now, the holder is deleted.
local function writeKept(h, k)
  local parts, t = {FORMAT, h.id, int(k.stop)}, now()
  for id, ms in pairs(k.ids) do
    parts[#parts + 1] = id
    parts[#parts + 1] = int(ms)
  end
  local _, ms = last(k)
  if ms then
    redis.call('SET', KEYS[3], table.concat(parts, ' '), 'PX', int(math.max(1, ms - t)))
  else
    redis.call('DEL', KEYS[3])
  end
  return expire(int(math.max(k.stop, ms or 0) - t))
end

-- left returns how long (ms) the holder still stands. If it has lost its expiry, as by PERSIST or
-- RESTORE, it gets its TTL, or the time of what joined it; but a peer's stays as it is, and left
-- returns -1.
local function left(h)
  local ms = redis.call('PTTL', KEYS[1])
  if ms >= 0 or h.foreign then return ms end
  local k = readKept(h)
  if k then
    writeKept(h, k)
    return math.max(0, redis.call('PTTL', KEYS[1]))
  end
  expire(int(kept(h.ttl)))
  return tonumber(h.ttl)
end

-- extend restarts the TTL of the holder, and shortens nothing that joined it.
local function extend(h, ttl)
  local k = readKept(h)
  if not k then return expire(int(kept(ttl))) end
  k.stop = now() + kept(ttl)
  return writeKept(h, k)
end
