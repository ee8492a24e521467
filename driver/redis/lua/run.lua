-- How to undo what the script wrote for a name: commands, the last one first.
local undo

local function run(KEYS, ARGV)
--- include the script
end

-- attempt runs the script for one name. If it is refused half way, for want of a right, what it
-- wrote is undone. It returns the reply, or the error.
local function attempt(keys, args)
  undo = {}
  local ok, reply = pcall(run, keys, args)
  if ok then return reply end
  for i = #undo, 1, -1 do redis.pcall(unpack(undo[i])) end
  if type(reply) == 'table' then return reply end
  local text = tostring(reply)
  if not string.find(text, '^%u+ ') then text = 'ERR ' .. text end -- it is Lua's
  return {err = text}
end
