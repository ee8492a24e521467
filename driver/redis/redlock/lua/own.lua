-- Dlock's own keys: all that a master has of a lock is in KEYS[1], which expires with the last of
-- the members.

-- load returns the members that are stored, expired ones too; nil if there are none.
local function load()
  local text = redis.call('GET', KEYS[1])
  local list = text and parse(KEYS[1], text)
  if text and not list then error('the value of ' .. KEYS[1] .. ' is not of dlock') end
  return list
end

-- store replaces what is stored. id is the first member's.
local function store(id, text, ms) redis.call('SET', KEYS[1], text, 'PX', ms) end

-- delete removes what is stored.
local function delete() redis.call('DEL', KEYS[1]) end
