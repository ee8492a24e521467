-- Runs a script for many names, one after the other. An error for one of them is its reply, and
-- does not affect the others.
--
-- KEYS         two for each name
-- ARGV[1 … 3]  the arguments common to all
-- ARGV[4 …]    the other arguments of the first name, then those of the second …
--
-- Returns the replies.

local keys, args, each = {}, {ARGV[1], ARGV[2], ARGV[3]}, 2 * (#ARGV - 3) / #KEYS
local replies = {}
for i = 1, #KEYS / 2 do
  keys[1], keys[2] = KEYS[2 * i - 1], KEYS[2 * i]
  for j = 1, each do args[3 + j] = ARGV[3 + (i - 1) * each + j] end
  replies[i] = attempt(keys, args)
end
return replies
