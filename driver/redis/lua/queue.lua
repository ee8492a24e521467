-- The state of one name, and the rule of driver/queue.go restated. Most scripts include it.
--
-- KEYS[1]  a sorted set whose scores are all 0: a map in the order of the bytes of its members,
--          read in ranges
-- ARGV[1]  channels: what stands before a client's ID in the name of its channel
-- ARGV[2]  how long (ms) the last token is kept after everybody is gone
-- ARGV[3]  the grant window (µs): how long a waiter that was not heard of for so long has to
--          confirm its grant
--
-- The members begin with a letter for their kind. IDs have 32 hexadecimal digits, times (µs) and
-- places 16 decimal ones, limits 10.
--
--   !2 TOKEN              the format of all this, and the last token
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
-- waits has its place for a token. Flags: f fixed, b broken, u to be confirmed, or "-".
--
-- Who holds an Exclusive request is the only owner. All requests of an owner have one token and one
-- limit. So no script has to read all that stands there: each reads the ends of ranges, and its
-- cost hardly grows with the number of members.
local S = KEYS[1]
local channels, keep, window = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local last = header and tonumber(string.sub(header, 4)) or 0
local existed = header ~= nil

-- How many of those who died while they waited, and how many old tombstones, one script removes.
local budget = 100

-- How many holders that have expired one script removes, and how many waiters it grants. No script
-- keeps the server from others for longer than some milliseconds.
local removals, grants = 100, 50

-- What is known of the set without asking: head has its first members, and whole says that these
-- are all.
local whole = #head < 12

local changed = false -- whether anything was removed
local latest -- when the last of what was written is over

local news = {} -- messages to publish: each a channel and a text

local function publish(client, text) news[#news + 1] = {channels .. client, text} end

-- add writes members. Then nothing is known any more.
local function add(...)
  head, whole = {}, false
  local scored = {}
  for _, member in ipairs({...}) do
    scored[#scored + 1] = '0'
    scored[#scored + 1] = member
  end
  -- What stood there before stays if the script is refused later.
  if redis.call('ZADD', S, unpack(scored)) == select('#', ...) then undo[#undo + 1] = {'ZREM', S, ...} end
end

-- remove removes members that stand there.
local function remove(...)
  redis.call('ZREM', S, ...)
  local gone, rest, scored = {}, {}, {'ZADD', S}
  for _, member in ipairs({...}) do
    scored[#scored + 1] = '0'
    scored[#scored + 1] = member
  end
  undo[#undo + 1] = scored
  for _, member in ipairs({...}) do gone[member] = true end
  for _, member in ipairs(head) do
    if not gone[member] then rest[#rest + 1] = member end
  end
  changed, head = true, rest
end

local function int(x) return string.format('%.0f', x) end
local function digits(x) return string.format('%016.0f', x) end
local function foreign(member) error('the member ' .. member .. ' of ' .. S .. ' is not of dlock') end

-- first returns the first member that begins so, and final the last one of a kind.
local function first(what)
  local kind, length = string.byte(what), #what
  for _, member in ipairs(head) do
    local k = string.byte(member)
    if k > kind then return nil end
    if k == kind and string.sub(member, 1, length) == what then return member end
  end
  if not whole then return redis.call('ZRANGE', S, '[' .. what, '(' .. what .. '\255', 'BYLEX', 'LIMIT', '0', '1')[1] end
end
local function final(kind)
  if not whole then return redis.call('ZRANGE', S, '(' .. kind .. '\255', '[' .. kind, 'BYLEX', 'REV', 'LIMIT', '0', '1')[1] end
  for i = #head, 1, -1 do
    if string.sub(head[i], 1, 1) == kind then return head[i] end
  end
end
-- named returns the member that begins with what, an ID at its end.
local function named(what) return first(what .. ' ') end

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

-- stands returns the request of that ID that holds, or has expired and was not removed yet, and
-- holder one that holds.
local function stands(id) return get('x', id) or get('s', id) end
local function holder(id)
  local r = stands(id)
  return r and r.expiry > now and r or nil
end

-- held returns one of the requests of the owner that hold.
local function held(owner)
  local r = holder(owner)
  if r then return r end
  local join = first('j' .. owner)
  return join and holder(string.sub(join, 34))
end

-- left reports whether holders have expired that were not removed yet.
local function left()
  local member = first('e')
  return member and time(member) <= now
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
  local member, at = r.member, r.index
  r.member = table.concat({kind .. r.id, r.mode, int(r.limit), r.owner, int(r.token), int(r.expiry), int(r.ttl), r.client, r.flags,
    int(r.arrived), r.label}, ' ')
  r.index = index(kind, r)
  latest = math.max(latest or 0, r.expiry)
  -- What replaces it comes first: who may not add anything must not take it away either.
  if r.member ~= member and r.index ~= at then
    add(r.member, r.index)
    if member then remove(member, at) end
  elseif r.member ~= member then
    add(r.member)
    remove(member)
  end
end

-- permit returns the member of a permit.
local function permit(r) return string.format('l%010.0f', r.limit) .. r.owner end

-- writeToken writes the last token. The set is never empty meanwhile, since an empty set does not
-- exist, and a script cannot create a key whose slot moves away.
local function writeToken(token)
  local before = header
  last, header = token, FORMAT .. int(token)
  add(header)
  if before and before ~= header then remove(before) end
end

-- grant lets a request hold for the TTL, with a token of its own.
local function grant(r, ttl)
  writeToken(math.max(last + 1, now))
  r.token, r.expiry = last, now + ttl
  store(r.mode, r)
  if r.limit > 0 then add(permit(r)) end
end

-- removeHolder removes a request that holds.
local function removeHolder(r)
  if r.owner == r.id then
    remove(r.member, r.index)
  else
    remove(r.member, r.index, 'j' .. r.owner .. r.id)
  end
  if r.limit > 0 and not stands(r.owner) and not first('j' .. r.owner) then remove(permit(r)) end
end

-- removeWaiter removes a request that waits.
local function removeWaiter(r) remove(r.member, r.index, 'q' .. digits(r.token) .. r.id) end

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
  if member then remove(member, 'd' .. digits(before) .. what) end
  add(what .. ' ' .. value .. ' ' .. int(at), 'd' .. digits(at) .. what)
  latest = math.max(latest or 0, at)
end

-- unmark removes a c or a g.
local function unmark(what)
  local _, at, member = marked(what)
  remove(member, 'd' .. digits(at) .. what)
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
  local over = final('f')
  if not over then return end
  local _, at = marked('c' .. client)
  mark('c' .. client, int(time(final('q'))), math.max(at, time(over)))
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
  if not first('e') then return true end
  if r.mode == 'x' or first('x') then return false end
  if r.limit == 0 then return true end
  local smallest = tonumber(string.sub(first('l'), 2, 11))
  return redis.call('ZLEXCOUNT', S, '[l', '(m') < math.min(r.limit, smallest)
end

-- keptFor returns for how long a request waits since its client last asked for it (keptFor in
-- wait.go has the same time).
local function keptFor(ttl) return math.max(ttl, 3000000) end

-- grantNext grants those whose turn it is, and tells their clients. Who asked within the grant
-- window holds for its TTL. The others may be dead: they hold for the window, until they confirm
-- it. It returns true if it was not done when a budget was spent: the client of the next one is
-- told to ask, and that goes on with it.
local function grantNext()
  while true do
    local place = first('q')
    if not place then return left() end
    if left() then
      local r = get('w', name(place)) or foreign(place)
      publish(r.client, r.id)
      return true
    end
    local r = get('w', name(place)) or foreign(place)
    if not waits(r) then
      if budget == 0 then return true end
      budget = budget - 1
      removeWaiter(r)
    elseif admits(r) then
      if grants == 0 then
        publish(r.client, r.id)
        return true
      end
      grants = grants - 1
      local place, ttl = r.token, r.ttl
      removeWaiter(r)
      r.member = nil
      if now - (r.expiry - keptFor(ttl)) > window then
        ttl = math.min(ttl, window)
        flag(r, 'u', true)
      end
      grant(r, ttl)
      publish(r.client, table.concat({r.id, int(place), int(r.token), int(ttl)}, ' '))
      if r.mode == 'x' then return end -- nobody fits beside it
    else
      return
    end
  end
end

-- lasts returns for how long (ms) the set is kept if all that is in it is over then.
local function lasts(at) return int(math.max(math.ceil((at - now) / 1000), 0) + keep) end

-- done returns the reply. If the script wrote anything, the set does not expire before all that is
-- in it is over and the last token need not be kept any more. What was written before is seen to,
-- but for a set that has lost its time. Messages come last: what they tell is not undone.
local function done(reply)
  if not existed then -- one without a time
    if latest then redis.call('PEXPIRE', S, lasts(latest)) end
  elseif not (latest and redis.call('PEXPIRE', S, lasts(latest), 'GT') == 1)
    and redis.call('PEXPIRE', S, lasts(now), 'NX') == 1 then
    local at = now
    for _, kind in ipairs({'d', 'e', 'f'}) do
      local member = final(kind)
      if member then at = math.max(at, time(member)) end
    end
    redis.call('PEXPIRE', S, lasts(at))
  end
  undo = {}
  for _, m in ipairs(news) do redis.call('PUBLISH', m[1], m[2]) end
  return reply
end

-- over returns the first member of the range if its time is over.
local function over(kind)
  local member = first(kind)
  return member and time(member) <= now and member
end

-- purge removes what has expired, and grants those whose turn it is then.
local function purge()
  local clients = {} -- those that did not confirm a grant
  local member = over('e')
  while member and removals > 0 do
    local r = stands(name(member)) or foreign(member)
    removeHolder(r)
    if has(r, 'u') then clients[r.client] = true end
    removals = removals - 1
    member = over('e')
  end
  for client in pairs(clients) do passOver(client) end
  member = over('f')
  while member and budget > 0 do
    removeWaiter(get('w', name(member)) or foreign(member))
    budget = budget - 1
    member = over('f')
  end
  member = over('d')
  while member and budget > 0 do
    unmark(name(member))
    budget = budget - 1
    member = over('d')
  end
  if changed then grantNext() end
end

-- untilExpiry returns how long (µs) it is until the next of those who hold expires, or 0.
local function untilExpiry()
  local member = first('e')
  return member and time(member) - now or 0
end

purge()
