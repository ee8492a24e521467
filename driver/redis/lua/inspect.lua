-- Returns {now (µs), those who hold, those who wait, in order}. Each request is returned as it is
-- stored.

--- include queue.lua

grantNext()
local waiting = {}
for _, place in ipairs(redis.call('ZRANGE', S, '[q', '(r', 'BYLEX')) do
  local r = get('w', name(place)) or foreign(place)
  if waits(r) then waiting[#waiting + 1] = r.member end
end
local holding = redis.call('ZRANGE', S, '[s', '(t', 'BYLEX')
for _, member in ipairs(redis.call('ZRANGE', S, '[x', '(y', 'BYLEX')) do holding[#holding + 1] = member end
return done({now, holding, waiting})
