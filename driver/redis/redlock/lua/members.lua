-- The members of the lock, in both layouts. stored are those that the layout has, members those
-- that have not expired. alien is the value of a key of the format setnx that belongs to none of
-- them, as far as the master knows.
local stored, alien = load()
local members = {}
for _, m in ipairs(stored or {}) do
  if m.till > now then members[#members + 1] = m end
end

-- find returns the member with that ID and its place.
local function find(id)
  for i, m in ipairs(members) do
    if m.id == id then return m, i end
  end
end

local function broken(m) return string.find(m.flags, 'b', 1, true) ~= nil end

-- kept returns how long (ms) a master keeps a hold: a hundredth of the TTL and 3 ms longer than the
-- hold is trusted, since clocks run at different rates and keys expire in whole milliseconds.
local function kept(ttl) return math.ceil((ttl + 3) * 100 / 99) end

-- begin starts the TTL of a member anew. A fixed join is kept for its TTL and a millisecond: it may
-- be what a hold leaves for a certain time, which is not to become longer.
local function begin(m, ttl)
  m.ttl = ttl
  if m.owner ~= m.id and string.find(m.flags, 'f', 1, true) then
    m.till = now + ttl + 1
  else
    m.till = now + kept(ttl)
  end
end

-- write stores the members, in keys that expire with the last of them. The first one stays the
-- first for as long as it is there, so that peers see one value. Then the one that ends last takes
-- its place.
local function write()
  if #members == 0 then return delete() end
  local last = 1
  for i, m in ipairs(members) do
    if m.till > members[last].till then last = i end
  end
  local ms = int(members[last].till - now)
  if not stored or members[1].id ~= stored[1].id then
    table.insert(members, 1, table.remove(members, last))
  end
  local lines = {}
  for i, m in ipairs(members) do lines[i] = line(m) end
  store(members[1].id, FORMAT .. ' ' .. table.concat(lines, '\n'), ms)
end
