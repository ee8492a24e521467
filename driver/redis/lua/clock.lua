-- What a command begins with, for however many names it is.

-- The server's clock (µs). It stands still while a script runs.
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]

-- The format of what dlock keeps under a name. It changes with the members, with their meaning,
-- with the rules by which scripts change them, and with what they publish. The first member begins
-- with it, in every format, so that a client of another one knows.
local FORMAT, HEADER = '!2 ', '^!2 %d+$'

