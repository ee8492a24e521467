-- Dlock's own keys: all that a master has of the holder is in one.
--
-- KEYS[1]  the holder, a string that expires with it:
--          !1 ID flag ttl(ms) since(ms) client label
--          It begins with the format. The flag is "b" if the hold was broken, else "-". since is
--          when it was granted.

-- read returns the holder, or nil.
local function read()
  local text = redis.call('GET', KEYS[1])
  if not text then return nil end
  local format, id, flag, ttl, since, rest = string.match(text, '^(!%d+) (%x+) ([-b]) (%d+) (%d+) (.*)$')
  if format == FORMAT then return {id = id, flag = flag, ttl = ttl, since = since, rest = rest} end
  local other = string.match(text, '^!(%d+) ')
  if other and '!' .. other ~= FORMAT then otherFormat(KEYS[1], other) end
  error('the value of ' .. KEYS[1] .. ' is not of dlock')
end

-- write stores the holder. The other arguments are those that follow the value in SET.
local function write(h, ...) redis.call('SET', KEYS[1], text(h), ...) end

-- expire makes the holder expire in ms, a text. It returns 1 if there is one, else 0.
local function expire(ms) return redis.call('PEXPIRE', KEYS[1], ms) end

-- delete removes the holder and what joined it.
local function delete() redis.call('DEL', KEYS[1], KEYS[3]) end
