-- The state of one name, and the rule of driver/queue.go restated. Most scripts include it.
--
-- KEYS[1]  a sorted set whose scores are all 0: a map in the order of the bytes of its members,
--          read in ranges
-- ARGV[1]  channels: what stands before a client's ID in the name of its channel
-- ARGV[2]  how long (ms) the last token is kept after everybody is gone
-- ARGV[3]  the grant window (µs): how long a waiter that was granted has to confirm it
--
-- The members begin with a letter for their kind. IDs have 32 hexadecimal digits, times (µs) and
-- places 16 decimal ones, limits 10.
--
--   !1 TOKEN              the format of all this, and the last token
--   c CLIENT PLACE UNTIL  a client that did not confirm a grant: what it has in that place or
--                         before does not wait any more
--   d TIME KIND ID        when a c or a g is over
--   e TIME ID             when a request that holds expires
--   f TIME ID             when a request that waits expires
--   g ID HOW UNTIL        a tombstone: that ID creates nothing. HOW is "f" if it was ended by
--                         force, else "-"
--   j OWNER ID            a join that holds
--   l LIMIT OWNER         an owner that holds a permit
--   q PLACE ID            the order of those who wait
--   s ID REQUEST          a request that holds, Shared
--   w ID REQUEST          a request that waits
--   x ID REQUEST          a request that holds, Exclusive
--
-- There are spaces only before TOKEN, PLACE (in c), HOW, UNTIL and REQUEST. REQUEST is a line of
-- words, the label last: mode limit owner token expiry ttl client flags arrived label. One that
-- waits has its place for a token. Flags: f fixed, b broken, u not confirmed yet, or "-".
--
-- Who holds an Exclusive request is the only owner. All requests of an owner have one token and one
-- limit. So no script has to read all that stands there: each reads the ends of ranges, and its
-- cost hardly grows with the number of members.
local S = KEYS[1]
local channels, keep, window = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local last = header and tonumber(string.sub(header, 4)) or 0

-- How many of those who died while they waited, and how many old tombstones, one script removes.
local budget = 100

local changed = false -- whether anything has been written

local function write(...)
  changed = true
  redis.call(...)
end

local function int(x) return string.format('%.0f', x) end
local function digits(x) return string.format('%016.0f', x) end
local function foreign(member) error('the member ' .. member .. ' of ' .. S .. ' is not of dlock') end

-- least and greatest return the first and the last member of a range, which begins with from and
-- ends before to.
local function least(from, to) return redis.call('ZRANGE', S, '[' .. from, '(' .. to, 'BYLEX', 'LIMIT', 0, 1)[1] end
local function greatest(from, to) return redis.call('ZRANGE', S, '(' .. to, '[' .. from, 'BYLEX', 'REV', 'LIMIT', 0, 1)[1] end
-- named returns the member that begins with what, an ID at its end.
local function named(what) return least(what .. ' ', what .. '!') end

-- time and name return the parts of a d, e, f or q.
local function time(member) return tonumber(string.sub(member, 2, 17)) or foreign(member) end
local function name(member) return string.sub(member, 18) end

-- index returns the member that says when the request expires.
local function index(kind, r) return (kind == 'w' and 'f' or 'e') .. digits(r.expiry) .. r.id end

-- read returns the request of an s, w or x.
local function read(member)
  local kind, id, m, l, o, t, e, d, c, f, a, text =
    string.match(member, '^([swx])(%x+) (%a) (%d+) (%x+) (%d+) (%d+) (%d+) (%x+) (%S+) (%d+) (.*)$')
  if not kind then foreign(member) end
  local r = {member = member, id = id, mode = m, limit = tonumber(l), owner = o, token = tonumber(t), expiry = tonumber(e), ttl = tonumber(d),
    client = c, flags = f, arrived = tonumber(a), label = text}
  r.index = index(kind, r)
  return r
end

-- get returns the request of that kind and ID, if there is one.
local function get(kind, id)
  local member = named(kind .. id)
  return member and read(member)
end

-- holder returns the request of that ID if it holds.
local function holder(id) return get('x', id) or get('s', id) end

-- held returns one of the requests of the owner that hold.
local function held(owner)
  local r = holder(owner)
  if r then return r end
  local join = least('j' .. owner, 'j' .. owner .. 'g')
  return join and holder(string.sub(join, 34))
end

local function has(r, flag) return string.find(r.flags, flag, 1, true) ~= nil end

-- flag sets or clears a flag.
local function flag(r, f, on)
  local s = string.gsub(string.gsub(r.flags, f, ''), '-', '')
  if on then s = s .. f end
  r.flags = s == '' and '-' or s
end

-- store writes a request. It replaces what was written of it before.
local function store(kind, r)
  if r.member then write('ZREM', S, r.member, r.index) end
  r.member = table.concat({kind .. r.id, r.mode, int(r.limit), r.owner, int(r.token), int(r.expiry), int(r.ttl), r.client, r.flags,
    int(r.arrived), r.label}, ' ')
  r.index = index(kind, r)
  write('ZADD', S, 0, r.member, 0, r.index)
end

-- permit returns the member of a permit.
local function permit(r) return string.format('l%010.0f', r.limit) .. r.owner end

-- writeToken writes the last token. The set is never empty meanwhile, since an empty set does not
-- exist, and a script cannot create a key whose slot moves away.
local function writeToken(token)
  local before = header
  last, header = token, FORMAT .. int(token)
  write('ZADD', S, 0, header)
  if before and before ~= header then write('ZREM', S, before) end
end

-- grant lets a request hold for the TTL, with a token of its own.
local function grant(r, ttl)
  writeToken(math.max(last + 1, now))
  r.token, r.expiry = last, now + ttl
  store(r.mode, r)
  if r.limit > 0 then write('ZADD', S, 0, permit(r)) end
end

-- removeHolder removes a request that holds.
local function removeHolder(r)
  write('ZREM', S, r.member, r.index, 'j' .. r.owner .. r.id)
  if r.limit > 0 and not held(r.owner) then write('ZREM', S, permit(r)) end
end

-- removeWaiter removes a request that waits.
local function removeWaiter(r) write('ZREM', S, r.member, r.index, 'q' .. digits(r.token) .. r.id) end

-- marked returns the value of a c or a g, when it is over, and its member.
local function marked(what)
  local member = named(what)
  if not member then return nil, 0 end
  local value, at = string.match(member, '^%S+ (%S+) (%d+)$')
  return value, tonumber(at) or foreign(member), member
end

-- mark writes a c or a g: its value, and when it is over.
local function mark(what, value, at)
  local _, before, member = marked(what)
  if member then write('ZREM', S, member, 'd' .. digits(before) .. what) end
  write('ZADD', S, 0, what .. ' ' .. value .. ' ' .. int(at), 0, 'd' .. digits(at) .. what)
end

-- unmark removes a c or a g.
local function unmark(what)
  local _, at, member = marked(what)
  write('ZREM', S, member, 'd' .. digits(at) .. what)
end

-- addTombstone makes sure that copies of the request that are still under way create nothing.
local function addTombstone(id, ttl, forced)
  if not header then writeToken(0) end
  local how, at = marked('g' .. id)
  if at <= now then how, at = nil, 0 end
  mark('g' .. id, (forced or how == 'f') and 'f' or '-', math.max(at, now + ttl))
end

-- tombstone returns how the request was ended, if it has a tombstone.
local function tombstone(id)
  local how, at = marked('g' .. id)
  return at > now and how or nil
end

-- passedOver returns up to which place the requests of the client do not wait any more.
local function passedOver(client) return tonumber((marked('c' .. client))) or 0 end

-- passOver passes over all requests of a client that wait now. By the end of the mark they have
-- expired.
local function passOver(client)
  local final = greatest('f', 'g')
  if not final then return end
  local _, at = marked('c' .. client)
  mark('c' .. client, int(time(greatest('q', 'r'))), math.max(at, time(final)))
end

local function waits(r) return r.expiry > now and r.token > passedOver(r.client) end

-- waiter returns the request of that ID if it waits. If it was written there, but waits no more, it
-- is removed.
local function waiter(id)
  local r = get('w', id)
  if not r or waits(r) then return r end
  removeWaiter(r)
end

-- admits reports whether r is compatible with all that is held. Nobody waits ahead of it.
local function admits(r)
  if not least('e', 'f') then return true end
  if r.mode == 'x' or least('x', 'y') then return false end
  if r.limit == 0 then return true end
  local smallest = tonumber(string.sub(least('l', 'm'), 2, 11))
  return redis.call('ZLEXCOUNT', S, '[l', '(m') < math.min(r.limit, smallest)
end

-- grantNext grants those whose turn it is, and tells their clients. It returns true if it was not
-- done when the budget was spent.
local function grantNext()
  while true do
    local first = least('q', 'r')
    if not first then return end
    local r = get('w', name(first)) or foreign(first)
    if not waits(r) then
      if budget == 0 then return true end
      budget = budget - 1
      removeWaiter(r)
    elseif admits(r) then
      removeWaiter(r)
      r.member = nil
      flag(r, 'u', true)
      grant(r, math.min(r.ttl, window))
      redis.call('PUBLISH', channels .. r.client, r.id)
      if r.mode == 'x' then return end -- nobody fits beside it
    else
      return
    end
  end
end

-- done returns the reply. If the script wrote anything, the set expires when all that is in it is
-- over and the last token need not be kept any more.
local function done(reply)
  if changed then
    local latest = now
    for kind, next in pairs({d = 'e', e = 'f', f = 'g'}) do
      local final = greatest(kind, next)
      if final then latest = math.max(latest, time(final)) end
    end
    redis.call('PEXPIRE', S, math.ceil((latest - now) / 1000) + keep)
  end
  return reply
end

-- over returns the first member of the range if its time is over.
local function over(kind, next)
  local first = least(kind, next)
  return first and time(first) <= now and first
end

-- purge removes what has expired, and grants those whose turn it is then.
local function purge()
  local clients = {} -- those that did not confirm a grant
  local first = over('e', 'f')
  while first do
    local r = holder(name(first)) or foreign(first)
    removeHolder(r)
    if has(r, 'u') then clients[r.client] = true end
    first = over('e', 'f')
  end
  for client in pairs(clients) do passOver(client) end
  first = over('f', 'g')
  while first and budget > 0 do
    removeWaiter(get('w', name(first)) or foreign(first))
    budget = budget - 1
    first = over('f', 'g')
  end
  first = over('d', 'e')
  while first and budget > 0 do
    unmark(name(first))
    budget = budget - 1
    first = over('d', 'e')
  end
  if changed then grantNext() end
end

-- untilExpiry returns how long (µs) it is until the next of those who hold expires, or 0.
local function untilExpiry()
  local first = least('e', 'f')
  return first and time(first) - now or 0
end

purge()
