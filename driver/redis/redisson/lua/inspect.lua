-- Returns what holders returns, of all members.
local l = lock()
return holders(l, l.live, last(l.live) - now)
