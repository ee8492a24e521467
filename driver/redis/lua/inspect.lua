-- Returns {now (µs), {id, request, …} of those who hold, {id, request, …} of those who wait, in order}.

--- include queue.lua

settle()
local holding, waiting = {}, {}
for id, r in pairs(held) do
  holding[#holding + 1] = id
  holding[#holding + 1] = line(r)
end
if places then
  for _, id in ipairs(redis.call('ZRANGE', Q, 0, -1)) do
    local text = redis.call('HGET', W, id)
    if text and read(id, text).expiry > now then
      waiting[#waiting + 1] = id
      waiting[#waiting + 1] = text
    end
  end
end
return {now, holding, waiting}
