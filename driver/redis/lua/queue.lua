-- The state of one name, and the rule of driver/queue.go restated. Most scripts include it.
--
-- All requests but a single holder are in a sorted set whose scores are all 0: a map in the order
-- of the bytes of its members, read in ranges. The set exists only while it has members.
--
-- The members begin with a letter for their kind. IDs have 32 hexadecimal digits, times (µs) and
-- places 16 decimal ones, limits 10.
--
--   ! BEGUN               first, without the space: since when this set exists. The hash has the
--                         same time; a set with another time is not this lock's
--   c CLIENT PLACE UNTIL  a client that did not confirm a grant: its requests in that place or
--                         before no longer wait
--   d TIME KIND ID        when a c or a g ends
--   e TIME ID             when a request that holds expires
--   f TIME ID             when a request that waits expires
--   g ID HOW UNTIL        a tombstone: that ID creates nothing. HOW is "f" if it was ended by
--                         force, else "-"
--   j OWNER ID            a join that holds
--   l LIMIT OWNER         an owner that holds a permit
--   q PLACE ID            the order of the waiters
--   s ID REQUEST          a request that holds, Shared
--   w ID REQUEST          a request that waits
--   x ID REQUEST          a join that holds, Exclusive
--
-- There are spaces only before PLACE (in c), HOW, UNTIL and REQUEST. REQUEST is a line of words,
-- the label last: mode limit owner token expiry ttl client flags arrived label. A waiter has its
-- place as the token.
--
-- The holder of an Exclusive request is the only owner. All requests of an owner have one token and
-- one limit. So no script has to read all members: each reads the ends of ranges, and its cost
-- hardly grows with the number of members.

-- The slot of the keys is moving, and nothing is known without the set.
local function unreachable() error({err = 'TRYAGAIN the keys of ' .. H .. ' are on two nodes'}) end
if queue and not S then unreachable() end

local channels, window, now = ARGV[1], tonumber(ARGV[3]), clock()

-- held is the request in the hash.
local held
if holder then
  local h = redis.call('HMGET', H, 'client', 'label', 'ttl', 'since', 'mode')
  held = {id = holder, owner = holder, token = last, expiry = till, flags = flags,
    client = h[1], label = h[2], ttl = numeral(h[3]), arrived = numeral(h[4]),
    mode = MODES[h[5]] or 's',
    limit = MODES[h[5]] and 0 or numeral(string.match(h[5] or '', '^permit of ([1-9]%d*)$'))}
  local function is(pattern, text) return text and string.find(text, pattern) end
  local wrong = not is('^%x+$', holder) and 'holder' or not is('^[%a,-]+$', flags) and 'flags' or
    not is('^%x+$', held.client) and 'client' or not held.label and 'label' or
    not held.ttl and 'ttl' or not held.arrived and 'since' or not held.limit and 'mode'
  if wrong then foreign(H, 'the field ' .. wrong) end
end

-- lasts sets the expiry of a key to the time until which it is kept, and never shortens it. A new
-- key has no expiry yet.
local function lasts(key, new)
  local ms = int(math.ceil((kept > now and kept - now or keep) / 1000))
  if new or redis.call('PEXPIRE', key, ms, 'GT') == 0 then
    redis.call('PEXPIRE', key, ms, 'NX')
  end
end

-- How many waiters that have expired, and how many old tombstones, one script removes.
local budget = 100

-- How many waiters one script grants. The limits keep a script from blocking the server for more
-- than a few milliseconds.
local grants = 50

local function unknown(member) foreign(S, 'the member ' .. member) end

-- beginning returns the members up to that index.
local function beginning(to)
  local members = redis.pcall('ZRANGE', S, '0', to)
  if members.err then
    if string.find(members.err, 'WRONGTYPE', 1, true) then foreign(S, 'the type') end
    error(members)
  end
  if members[1] and not string.find(members[1], '^!%d+$') then unknown(members[1]) end
  return members
end

-- What is known of the set without reading it: head has its first members, whole says that these
-- are all, there says that it exists, and least is how many members it has at least.
local head = (queue or not H) and beginning('11') or {}
if not H then queue = string.sub(head[1] or '', 2) end
if queue and head[1] ~= '!' .. queue then head = {} end
local whole, least, there, fresh = #head < 12, #head, #head > 0, #head == 0

local changed = false -- whether any member was removed
local rewritten = false -- whether the hash is to be written
local latest = 0 -- when the last thing that was written ends

local begun = queue -- the time of the set
local news = {} -- messages to publish: each a channel and a text

local function publish(client, text) news[#news + 1] = {channels .. client, text} end

-- scored returns the ZADD command for members.
local function scored(members)
  local list = {'ZADD', S}
  for _, member in ipairs(members) do
    list[#list + 1] = '0'
    list[#list + 1] = member
  end
  return list
end

-- add writes members. After that, head is not known.
local function add(...)
  local members = {...}
  if not there then
    if not S then unreachable() end
    if beginning('0')[1] then redis.call('DEL', S) end -- of a lock whose hash was deleted
    begun = int(now)
    members[#members + 1] = '!' .. begun
  end
  head, whole, there = {}, false, true
  local new = redis.call(unpack(scored(members)))
  least = least + new
  -- Undoing must not remove members that stood there before.
  if new == #members then undo[#undo + 1] = {'ZREM', S, unpack(members)} end
end

-- remove removes members that stand there.
local function remove(...)
  local members, gone, rest = {...}, {}, {}
  least = least - redis.call('ZREM', S, unpack(members))
  undo[#undo + 1] = {'PEXPIRE', S, int(math.max(kept - now, keep) / 1000), 'NX'}
  undo[#undo + 1] = scored(members)
  for _, member in ipairs(members) do gone[member] = true end
  for _, member in ipairs(head) do
    if not gone[member] then rest[#rest + 1] = member end
  end
  changed, head = true, rest
end

local function digits(x) return string.format('%016.0f', x) end

-- range returns at most that many members.
local function range(from, to, most)
  if not there then return {} end
  return redis.call('ZRANGE', S, from, to, 'BYLEX', 'LIMIT', '0', int(most))
end

-- each calls f for the members of some kinds, at most for most of them. It begins at from, where an
-- earlier call ended ("" at first), and returns where the next call begins ("" at the end).
local function each(kinds, from, most, f)
  for kind in string.gmatch(kinds, '.') do
    if most > 0 and (from == '' or string.sub(from, 2, 2) == kind) then
      local after = '(' .. string.char(string.byte(kind) + 1)
      local members = range(from == '' and '[' .. kind or from, after, most)
      for _, member in ipairs(members) do f(member) end
      most = most - #members
      from = most == 0 and '(' .. members[#members] or ''
    end
  end
  return from
end

-- first returns the first member that begins with what, and final the last one of a kind.
local function first(what)
  local kind, length = string.byte(what), #what
  for _, member in ipairs(head) do
    local k = string.byte(member)
    if k > kind then return nil end
    if k == kind and string.sub(member, 1, length) == what then return member end
  end
  if not whole then return range('[' .. what, '(' .. what .. '\255', 1)[1] end
end
local function final(kind)
  if not whole then
    local from = '(' .. kind .. '\255'
    return redis.call('ZRANGE', S, from, '[' .. kind, 'BYLEX', 'REV', 'LIMIT', '0', '1')[1]
  end
  for i = #head, 1, -1 do
    if string.sub(head[i], 1, 1) == kind then return head[i] end
  end
end
-- named returns the member that begins with what, which ends with an ID.
local function named(what) return first(what .. ' ') end

-- time and name return the parts of a d, e, f or q.
local function time(member)
  return numeral(string.sub(member, 2, 17)) or unknown(member)
end
local function name(member) return string.sub(member, 18) end

-- index returns the member that says when the request expires.
local function index(kind, r) return (kind == 'w' and 'f' or 'e') .. digits(r.expiry) .. r.id end

-- read returns the request of an s, w or x.
local function read(member)
  local kind, id, m, l, o, t, e, d, c, f, a, text = string.match(member,
    '^([swx])(%x+) (%a) (%d+) (%x+) (%d+) (%d+) (%d+) (%x+) (%S+) (%d+) (.*)$')
  if not kind then unknown(member) end
  local r = {member = member, id = id, mode = m, limit = tonumber(l), owner = o,
    token = tonumber(t), expiry = tonumber(e), ttl = tonumber(d), client = c, flags = f,
    arrived = tonumber(a), label = text}
  r.index = index(kind, r)
  return r
end

-- get returns the request of that kind and ID, if there is one.
local function get(kind, id)
  local member = named(kind .. id)
  return member and read(member)
end

-- stands returns the request of that ID that holds, or has expired and was not removed yet. holds
-- returns it only if it holds.
local function stands(id)
  if held and held.id == id then return held end
  return get('x', id) or get('s', id)
end
local function holds(id)
  local r = stands(id)
  return r and r.expiry > now and r or nil
end

-- ofOwner returns one of the owner's requests that hold.
local function ofOwner(owner)
  local r = holds(owner)
  if r then return r end
  local join = first('j' .. owner)
  return join and holds(string.sub(join, 34))
end

-- soonest returns when the next holder expires; nil if there is none.
local function soonest()
  local member = first('e')
  local at = member and time(member)
  if held then at = math.min(at or held.expiry, held.expiry) end
  return at
end

-- left reports whether there are expired holders that were not removed yet.
local function left()
  local at = soonest()
  return at and at <= now
end

local function has(r, flag) return string.find(r.flags, flag, 1, true) ~= nil end

-- flag sets or clears a flag.
local function flag(r, f, on)
  local s = on and f or ''
  for word in string.gmatch(r.flags, '%a+') do
    if word ~= f then s = s == '' and word or s .. ',' .. word end
  end
  r.flags = s == '' and '-' or s
end

-- text returns the member of a request.
local function text(kind, r)
  return table.concat({kind .. r.id, r.mode, int(r.limit), r.owner, int(r.token), int(r.expiry),
    int(r.ttl), r.client, r.flags, int(r.arrived), r.label}, ' ')
end

-- store writes a request, and with it the member more, if given. It replaces the request's earlier
-- members.
local function store(kind, r, more)
  latest = math.max(latest, r.expiry)
  if r == held then
    rewritten = true
    return
  end
  local member, at = r.member, r.index
  r.member, r.index = text(kind, r), index(kind, r)
  if r.member == member then return end
  -- The new members come first: a user without the right to add must not remove either.
  if r.index == at then add(r.member) else add(r.member, r.index, more) end
  if member then remove(member, r.index ~= at and at or nil) end
end

-- permit returns the l of a request.
local function permit(r) return string.format('l%010.0f', r.limit) .. r.owner end

-- toSet moves a shared holder from the hash to the set, since it is no longer alone.
local function toSet()
  local r = held
  if not r or r.mode == 'x' then return end
  held, rewritten = nil, true
  store('s', r, r.limit > 0 and permit(r) or nil)
end

-- grant lets a request hold for the TTL, with a token of its own.
local function grant(r, ttl)
  toSet()
  last, rewritten = math.max(last + 1, now), true
  r.token, r.expiry = last, now + ttl
  if not soonest() then held = r end
  store(r.mode, r, r.limit > 0 and permit(r) or nil)
end

-- removeHolder removes a request that holds.
local function removeHolder(r)
  if r == held then
    held, rewritten, changed = nil, true, true
    return
  end
  local join = r.owner ~= r.id and 'j' .. r.owner .. r.id or nil
  remove(r.member, r.index, join)
  if r.limit > 0 and not stands(r.owner) and not first('j' .. r.owner) then remove(permit(r)) end
end

-- removeWaiter removes a request that waits.
local function removeWaiter(r) remove(r.member, r.index, 'q' .. digits(r.token) .. r.id) end

-- marked returns the value of a c or a g, when it ends, and its member.
local function marked(what)
  local member = named(what)
  if not member then return nil, 0 end
  local value, at = string.match(member, '^%S+ (%S+) (%d+)$')
  return value, tonumber(at) or unknown(member), member
end

-- mark writes a c or a g: its value, and when it ends.
local function mark(what, value, at)
  local _, before, member = marked(what)
  if member then remove(member, 'd' .. digits(before) .. what) end
  add(what .. ' ' .. value .. ' ' .. int(at), 'd' .. digits(at) .. what)
  latest = math.max(latest, at)
end

-- unmark removes a c or a g.
local function unmark(what)
  local _, at, member = marked(what)
  remove(member or unknown('d of ' .. what), 'd' .. digits(at) .. what)
end

-- addTombstone prevents copies of the request that are still under way from creating anything.
local function addTombstone(id, ttl, forced)
  local how, at = marked('g' .. id)
  if at <= now then how, at = nil, 0 end
  mark('g' .. id, (forced or how == 'f') and 'f' or '-', math.max(at, now + ttl))
end

-- tombstone returns how the request was ended, if it has a tombstone.
local function tombstone(id)
  local how, at = marked('g' .. id)
  return at > now and how or nil
end

-- passedOver returns the place up to which the requests of the client no longer wait.
local function passedOver(client) return tonumber((marked('c' .. client))) or 0 end

-- passOver passes over all requests of a client that wait now, with a c. They have expired before
-- it ends.
local function passOver(client)
  local over = final('f')
  if not over then return end
  local _, at = marked('c' .. client)
  mark('c' .. client, int(time(final('q'))), math.max(at, time(over)))
end

local function waits(r) return r.expiry > now and r.token > passedOver(r.client) end

-- waiter returns the request of that ID if it waits. If it is still written there but no longer
-- waits, it is removed; not if the hash is on another node, since nothing is granted then.
local function waiter(id)
  local r = get('w', id)
  if not r or waits(r) then return r end
  if H then removeWaiter(r) end
end

-- admits reports whether r, with no waiter ahead of it, is compatible with all holders.
local function admits(r)
  if not soonest() then return true end
  if r.mode == 'x' or held and held.mode == 'x' or first('x') then return false end
  if r.limit == 0 then return true end
  if held then return math.min(held.limit, r.limit) > 1 end
  local l = first('l')
  if not l then return false end
  local smallest = numeral(string.sub(l, 2, 11)) or unknown(l)
  return redis.call('ZLEXCOUNT', S, '[l', '(m') < math.min(r.limit, smallest)
end

-- keptFor returns how long (µs) a waiting request is kept after its client last asked for it, as
-- keptFor in wait.go.
local function keptFor(ttl) return math.max(ttl, 3000000) end

-- grantNext grants the waiters whose turn it is, and notifies their clients. A waiter whose client
-- asked within the grant window holds for its TTL. The others may be dead: they hold for the
-- window, until they confirm the grant. It returns true if it was not done when a budget was spent.
-- If too many holders had expired, or too many waiters were due, the client of the next waiter gets
-- a message to ask, and that call continues.
local function grantNext()
  while H do
    local place = first('q')
    if not place then return left() end
    local r = get('w', name(place)) or unknown(place)
    if left() then
      publish(r.client, r.id)
      return true
    elseif not waits(r) then
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
        flag(r, 'unconfirmed', true)
      end
      grant(r, ttl)
      publish(r.client, table.concat({r.id, int(place), int(r.token), int(ttl)}, ' '))
      if r.mode == 'x' then return end -- nothing fits beside it
    else
      return
    end
  end
end

-- mend sets the expiry of both keys, which may have been changed by hand.
local function mend()
  if H and format then lasts(H) end
  if there then lasts(S) end
end

-- done returns the reply. If the script wrote anything, it sets the expiry of the keys: not before
-- all that was written has ended and the last token need no longer be kept. The hash is written
-- last, so that a refusal before that leaves it as it was. Messages come after that, since what
-- they announce cannot be undone.
local function done(reply)
  local over = math.max(latest, now) + keep
  local longer = latest > 0 and kept < over
  if longer then kept = over + keep / 4 end
  if there and least < 2 and (whole or #redis.call('ZRANGE', S, '0', '1') == 1) then
    remove('!' .. begun)
    there = false
  elseif there and (longer or fresh) then
    lasts(S, fresh)
  end
  if H and (rewritten or longer and format or (there and begun) ~= queue) then
    if format and not (held or there) and kept > over + keep / 4 then -- a long TTL has ended
      undo[#undo + 1] = {'PEXPIRE', H, int((kept - now) / 1000)}
      kept = over + keep / 4
      redis.call('PEXPIRE', H, int((kept - now) / 1000))
    elseif longer and format then
      lasts(H)
    end
    local h = held or
      {id = '', mode = 'x', expiry = 0, flags = '-', client = '', label = '', ttl = 0, arrived = 0}
    local mode = h.mode == 'x' and 'exclusive' or h.limit == 0 and 'shared' or
      'permit of ' .. int(h.limit)
    redis.call('HSET', H, 'format', FORMAT, 'token', int(last), 'holder', h.id,
      'until', int(h.expiry), 'flags', h.flags, 'queue', there and begun or '0', 'kept', int(kept),
      'client', h.client, 'label', h.label, 'ttl', int(h.ttl), 'since', int(h.arrived),
      'mode', mode)
    if not format then
      undo[#undo + 1] = {'DEL', H}
      lasts(H, true)
    end
  end
  undo = {}
  for _, m in ipairs(news) do redis.call('PUBLISH', m[1], m[2]) end
  return reply
end

-- purgeAll calls f for the members of that kind whose time is over, at most for most of them, and
-- returns the rest of most.
local function purgeAll(kind, most, f)
  while most > 0 do
    local member = first(kind)
    if not member or time(member) > now then break end
    f(name(member), member)
    most = most - 1
  end
  return most
end

-- purge removes what has expired, and then grants the waiters whose turn it is.
local function purge()
  local clients = {} -- those that did not confirm a grant
  local function ends(r)
    if has(r, 'unconfirmed') then clients[r.client] = true end
    removeHolder(r)
  end
  if held and held.expiry <= now then ends(held) end
  purgeAll('e', 100, function(id, member) ends(stands(id) or unknown(member)) end)
  for client in pairs(clients) do passOver(client) end
  budget = purgeAll('f', budget, function(id, member)
    removeWaiter(get('w', id) or unknown(member))
  end)
  budget = purgeAll('d', budget, unmark)
  if changed then grantNext() end
end

-- untilExpiry returns the time (µs) until the next holder expires, or 0.
local function untilExpiry()
  local at = soonest()
  return at and at - now or 0
end

if H then purge() end
