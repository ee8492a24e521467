-- The keys of the format setnx: that of the lock has nothing but an ID, as other software has it.
-- What dlock keeps stands in a key of its own, in the same slot.
--
-- KEYS[1]  the ID of the first member. Any other value is a peer's, and is never changed.
-- KEYS[3]  the members. They count only while the ID of the first is the value of KEYS[1].
--
-- Both expire with the last of the members.

-- load returns the members that are stored, expired ones too; nil if there are none. Else, if the
-- lock is held all the same, it returns the value of its key: it is a peer's, as far as the master
-- knows. If KEYS[3] is gone, that is also said of a member of dlock. Its own client knows better,
-- from the ID.
local function load()
  local id = redis.call('GET', KEYS[1])
  if not id then return nil end
  local text = redis.call('GET', KEYS[3]) or ''
  if string.match(text, '^!%d+ (%x+)') ~= id then return nil, id end
  local list = parse(KEYS[3], text)
  if not list then error('the value of ' .. KEYS[3] .. ' is not of dlock') end
  return list
end

-- store replaces what is stored. id is the first member's.
local function store(id, text, ms)
  redis.call('SET', KEYS[1], id, 'PX', ms)
  redis.call('SET', KEYS[3], text, 'PX', ms)
end

-- delete removes what is stored.
local function delete() redis.call('DEL', KEYS[1], KEYS[3]) end
