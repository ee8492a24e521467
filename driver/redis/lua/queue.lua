-- The state of one name, and the rule of driver/queue.go restated.
--
-- KEYS[1] a sorted set whose scores are all 0: a map in the order of the bytes of its members, read
-- in ranges ARGV[1] channels: what stands before a client's ID in the name of its channel ARGV[2]
-- how long (ms) the last token is kept after everybody is gone ARGV[3] the grant window (µs): how
-- long a waiter that was granted has to confirm it
--
-- The members begin with a letter for their kind. IDs have 32 hexadecimal digits, times (µs) and
-- places 16 decimal ones, limits 10.
--   !1 TOKEN              the version of all this, and the last token
--   c CLIENT PLACE UNTIL  a client that did not confirm a grant: what it has in that place or before does not wait any more
--   d TIME KIND ID        when a c or a g is over
--   e TIME ID             when a request that holds expires
--   f TIME ID             when a request that waits expires
--   g ID HOW UNTIL        a tombstone: that ID creates nothing. HOW is "f" if it was ended by force, else "-"
--   j OWNER ID            a join that holds
--   l LIMIT OWNER         an owner that holds a permit
--   q PLACE ID            the order of those who wait
--   s, x ID REQUEST       a request that holds, Shared or Exclusive
--   w ID REQUEST          a request that waits
-- There are spaces only before PLACE, HOW, UNTIL and REQUEST, a line of words, the label last: mode
-- limit owner token expiry ttl client flags arrived label. One that waits has its place for a
-- token. Flags: f fixed, b broken, u not confirmed yet, or "-".
--
-- Who holds an Exclusive request is the only owner; all requests of an owner have one token and one
-- limit. So no script has to read all that stand: each looks at the ends of ranges, and its cost
-- hardly grows with what is in them.
local S = KEYS[1]
local channels, keep, window = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local last = header and tonumber(string.sub(header, 4)) or 0

-- how many of those who died waiting, and how many old tombstones, one script removes
local budget = 100

local changed = false -- has anything been written?

local function write(...)
  changed = true
  redis.call(...)
end

local function int(x) return string.format('%.0f', x) end
local function digits(x) return string.format('%016.0f', x) end
local function foreign(member) error('the member ' .. member .. ' of ' .. S .. ' is not of dlock') end

-- least and greatest return the first and the last member of a range: from is its first, to the
-- first behind it.
local function least(from, to) return redis.call('ZRANGE', S, '[' .. from, '(' .. to, 'BYLEX', 'LIMIT', 0, 1)[1] end
local function greatest(from, to) return redis.call('ZRANGE', S, '(' .. to, '[' .. from, 'BYLEX', 'REV', 'LIMIT', 0, 1)[1] end
local function named(what) return least(what .. ' ', what .. '!') end

-- time and name read d, e, f and q.
local function time(member) return tonumber(string.sub(member, 2, 17)) or foreign(member) end
local function name(member) return string.sub(member, 18) end

local function index(kind, r) return (kind == 'w' and 'f' or 'e') .. digits(r.expiry) .. r.id end

local function read(member)
  local kind, id, m, l, o, t, e, d, c, f, a, text =
    string.match(member, '^([swx])(%x+) (%a) (%d+) (%x+) (%d+) (%d+) (%d+) (%x+) (%S+) (%d+) (.*)$')
  if not kind then foreign(member) end
  local r = {member = member, id = id, mode = m, limit = tonumber(l), owner = o, token = tonumber(t), expiry = tonumber(e), ttl = tonumber(d),
    client = c, flags = f, arrived = tonumber(a), label = text}
  r.index = index(kind, r)
  return r
end

local function get(kind, id)
  local member = named(kind .. id)
  return member and read(member)
end

-- holder returns the request of that ID, if it holds.
local function holder(id) return get('x', id) or get('s', id) end

-- any returns one of the requests of the owner that hold.
local function any(owner)
  local r = holder(owner)
  if r then return r end
  local join = least('j' .. owner, 'j' .. owner .. 'g')
  return join and holder(string.sub(join, 34))
end

local function has(r, flag) return string.find(r.flags, flag, 1, true) ~= nil end

local function flag(r, f, on)
  local s = string.gsub(string.gsub(r.flags, f, ''), '-', '')
  if on then s = s .. f end
  r.flags = s == '' and '-' or s
end

-- store writes a request, in the place of what was written of it.
local function store(kind, r)
  if r.member then write('ZREM', S, r.member, r.index) end
  r.member = table.concat({kind .. r.id, r.mode, int(r.limit), r.owner, int(r.token), int(r.expiry), int(r.ttl), r.client, r.flags,
    int(r.arrived), r.label}, ' ')
  r.index = index(kind, r)
  write('ZADD', S, 0, r.member, 0, r.index)
end

local function permit(r) return string.format('l%010.0f', r.limit) .. r.owner end

-- count writes the last token. The set is never empty meanwhile: it would be gone, and what is not
-- there cannot be written by a script while its slot moves away.
local function count(token)
  local before = header
  last, header = token, '!1 ' .. int(token)
  write('ZADD', S, 0, header)
  if before and before ~= header then write('ZREM', S, before) end
end

local function grant(r, ttl)
  count(math.max(last + 1, now))
  r.token, r.expiry = last, now + ttl
  store(r.mode, r)
  if r.limit > 0 then write('ZADD', S, 0, permit(r)) end
end

-- drop removes a request that holds.
local function drop(r)
  write('ZREM', S, r.member, r.index, 'j' .. r.owner .. r.id)
  if r.limit > 0 and not any(r.owner) then write('ZREM', S, permit(r)) end
end

-- unwait removes a request that waits.
local function unwait(r) write('ZREM', S, r.member, r.index, 'q' .. digits(r.token) .. r.id) end

-- mark writes a c or a g: its value, and when it is over. marked returns both.
local function marked(what)
  local member = named(what)
  if not member then return nil, 0 end
  local value, at = string.match(member, '^%S+ (%S+) (%d+)$')
  return value, tonumber(at) or foreign(member), member
end

local function mark(what, value, at)
  local _, before, member = marked(what)
  if member then write('ZREM', S, member, 'd' .. digits(before) .. what) end
  write('ZADD', S, 0, what .. ' ' .. value .. ' ' .. int(at), 0, 'd' .. digits(at) .. what)
end

local function unmark(what)
  local _, at, member = marked(what)
  write('ZREM', S, member, 'd' .. digits(at) .. what)
end

-- bury makes sure that copies of the request which are still under way create nothing.
local function bury(id, ttl, forced)
  if not header then count(0) end
  local how, at = marked('g' .. id)
  if at <= now then how, at = nil, 0 end
  mark('g' .. id, (forced or how == 'f') and 'f' or '-', math.max(at, now + ttl))
end

-- gone returns how the ID was ended, if copies of its request may still be under way.
local function gone(id)
  local how, at = marked('g' .. id)
  return at > now and how or nil
end

-- passed returns up to which place what the client has does not wait any more.
local function passed(client) return tonumber((marked('c' .. client))) or 0 end

-- giveUp passes over a client: by the end of the mark, what it has there has expired.
local function giveUp(client)
  local final = greatest('f', 'g')
  if not final then return end
  local _, at = marked('c' .. client)
  mark('c' .. client, int(time(greatest('q', 'r'))), math.max(at, time(final)))
end

local function waits(r) return r.expiry > now and r.token > passed(r.client) end

-- awaiting returns a request of those who wait, unless it does not any more: then it goes.
local function awaiting(id)
  local r = get('w', id)
  if not r or waits(r) then return r end
  unwait(r)
end

-- admits: is r, whom nobody ahead waits for, compatible with all that is held?
local function admits(r)
  if not least('e', 'f') then return true end
  if r.mode == 'x' or least('x', 'y') then return false end
  if r.limit == 0 then return true end
  local smallest = tonumber(string.sub(least('l', 'm'), 2, 11))
  return redis.call('ZLEXCOUNT', S, '[l', '(m') < math.min(r.limit, smallest)
end

-- settle grants whoever is next, as long as there is one, and tells the clients. It returns true if
-- it is not done: the budget is spent.
local function settle()
  while true do
    local first = least('q', 'r')
    if not first then return end
    local r = get('w', name(first)) or foreign(first)
    if not waits(r) then
      if budget == 0 then return true end
      budget = budget - 1
      unwait(r)
    elseif admits(r) then
      unwait(r)
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

-- done returns the reply. If the script wrote anything, the set goes when what is there is over and
-- the last token need not be kept.
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

-- over returns the first member of the range if its time has come.
local function over(kind, next)
  local first = least(kind, next)
  return first and time(first) <= now and first
end

-- sweep drops what has expired, and grants whoever follows.
local function sweep()
  local clients = {} -- that did not take a grant
  local first = over('e', 'f')
  while first do
    local r = holder(name(first)) or foreign(first)
    drop(r)
    if has(r, 'u') then clients[r.client] = true end
    first = over('e', 'f')
  end
  for client in pairs(clients) do giveUp(client) end
  first = over('f', 'g')
  while first and budget > 0 do
    unwait(get('w', name(first)) or foreign(first))
    budget = budget - 1
    first = over('f', 'g')
  end
  first = over('d', 'e')
  while first and budget > 0 do
    unmark(name(first))
    budget = budget - 1
    first = over('d', 'e')
  end
  if changed then settle() end
end

-- hint says how long (µs) it is until the next of those who hold expires.
local function hint()
  local first = least('e', 'f')
  return first and time(first) - now or 0
end

sweep()
