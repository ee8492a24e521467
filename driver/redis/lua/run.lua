-- The commands that undo what the script wrote for a name. The last one runs first.
local undo

local function run(KEYS, ARGV)
--- include the script
end

-- attempt runs the script for one name. If it is refused half way, because a right is missing, what
-- it wrote is undone. It returns the reply, or the error.
local function attempt(keys, args)
  undo = {}
  local ok, reply = pcall(run, keys, args)
  if ok then return reply end
  for i = #undo, 1, -1 do redis.pcall(unpack(undo[i])) end
  if type(reply) == 'table' then return reply end
  local text = tostring(reply)
  if not string.find(text, '^%u+ ') then text = 'ERR ' .. text end -- an error of Lua
  return {err = text}
end
