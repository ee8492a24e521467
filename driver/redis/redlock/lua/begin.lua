-- The beginning of every script of Redlock.
--
-- KEYS[1]  the holder, a string that expires with it:
--          !1 ID flag ttl(ms) since(ms) client label
--          It begins with the format. The flag is "b" if the hold was broken, else "-". since is
--          when it was granted.
-- KEYS[2]  the tombstone of an ID: while it is there, that ID creates nothing
-- KEYS[3]  the fixed requests that joined the holder, a string that expires with the last of them:
--          !1 HOLDER end(ms) ID until(ms) ID until(ms) …
--          HOLDER is the ID of the holder, and end is when that expires by itself. The key of the
--          holder expires with the last of them all.

-- The format of what dlock keeps for Redlock. It changes with the parts of the holder, with their
-- meaning, and with the rules by which scripts change them. In every format the holder begins with
-- it, so that a client with another format can detect it.
local FORMAT = '!1'

-- read returns the holder, or nil.
local function read()
  local text = redis.call('GET', KEYS[1])
  if not text then return nil end
  local format, id, flag, ttl, since, rest = string.match(text, '^(!%d+) (%x+) ([-b]) (%d+) (%d+) (.*)$')
  if format == FORMAT then return {id = id, flag = flag, ttl = ttl, since = since, rest = rest} end
  local other = string.match(text, '^!(%d+) ')
  if other and '!' .. other ~= FORMAT then
    error('the key ' .. KEYS[1] .. ' has the format ' .. other .. ' of dlock; this client has ' .. string.sub(FORMAT, 2))
  end
  error('the value of ' .. KEYS[1] .. ' is not of dlock')
end

-- write stores the holder. The other arguments are those that follow the value in SET.
local function write(h, ...)
  redis.call('SET', KEYS[1], table.concat({FORMAT, h.id, h.flag, h.ttl, h.since, h.rest}, ' '), ...)
end

-- now returns the server's clock (ms).
local function now()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end

-- kept returns how long (ms) a master keeps a hold: a hundredth of the TTL and 3 ms longer than the
-- hold is trusted, since clocks run at different rates and keys expire in whole milliseconds.
local function kept(ttl) return math.ceil((ttl + 3) * 100 / 99) end

local function int(x) return string.format('%.0f', x) end

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
  return redis.call('PEXPIRE', KEYS[1], int(math.max(k.stop, ms or 0) - t))
end

-- left returns how long (ms) the holder still stands. If it has lost its expiry, as by PERSIST or
-- RESTORE, it gets its TTL, or the time of what joined it.
local function left(h)
  local ms = redis.call('PTTL', KEYS[1])
  if ms >= 0 then return ms end
  local k = readKept(h)
  if k then
    writeKept(h, k)
    return math.max(0, redis.call('PTTL', KEYS[1]))
  end
  redis.call('PEXPIRE', KEYS[1], int(kept(h.ttl)))
  return tonumber(h.ttl)
end

-- extend restarts the TTL of the holder, and shortens nothing that joined it.
local function extend(h, ttl)
  local k = readKept(h)
  if not k then return redis.call('PEXPIRE', KEYS[1], int(kept(ttl))) end
  k.stop = now() + kept(ttl)
  return writeKept(h, k)
end
