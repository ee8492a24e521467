-- The keys of the format setnx: that of the holder has nothing but the holder's ID, as other
-- software has it. What dlock keeps beside stands in keys of its own, in the same slot.
--
-- KEYS[1]  the holder, a string that expires with it: its ID. Any other value is a peer's, and is
--          never changed.
-- KEYS[4]  what else dlock knows of its holder, a string that expires with it, in the same form as
--          in dlock's own layout:
--          !1 ID flag ttl(ms) since(ms) client label
--          It counts only while its ID is the value of KEYS[1]. In every format it begins with the
--          format and the ID.

-- read returns the holder, or nil. foreign says that it is a peer's, as far as the master knows.
-- If KEYS[4] is gone, that is also said of a holder of dlock. Its own client knows better, from the
-- ID.
local function read()
  local id = redis.call('GET', KEYS[1])
  if not id then return nil end
  local format, owner, rest = string.match(redis.call('GET', KEYS[4]) or '', '^!(%d+) (%x+) (.*)$')
  if owner ~= id then
    return {foreign = true, id = id, flag = '-', ttl = '0', since = int(now()), rest = string.rep('0', 32) .. ' '}
  end
  if '!' .. format ~= FORMAT then otherFormat(KEYS[4], format) end
  local h = {id = id}
  h.flag, h.ttl, h.since, h.rest = string.match(rest, '^([-b]) (%d+) (%d+) (.*)$')
  return h
end

-- write stores the holder. The other arguments are those that follow the value in SET.
local function write(h, ...)
  redis.call('SET', KEYS[1], h.id, ...)
  redis.call('SET', KEYS[4], text(h), ...)
end

-- expire makes the holder expire in ms, a text. It returns 1 if there is one, else 0.
local function expire(ms)
  local there = redis.call('PEXPIRE', KEYS[1], ms)
  redis.call('PEXPIRE', KEYS[4], ms)
  return there
end

-- delete removes the holder and what joined it.
local function delete() redis.call('DEL', KEYS[1], KEYS[3], KEYS[4]) end
