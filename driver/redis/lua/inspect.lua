-- ARGV[4]  where to go on: "" at first, then as the last reply says
--
-- Returns {now (µs), those who hold, those who wait, in order, where to go on}. Each request is
-- returned as it is stored in the sorted set. Those who wait come first: one that is granted
-- meanwhile is there twice. In the end there is nowhere to go on: "".

--- include queue.lua

local most = 250 -- for one reply
local holding, waiting = {}, {}

-- some returns members of a range, no more than fit, and where to go on if there are more.
local function some(from, to)
  local n = most - #holding - #waiting
  local members = range(from, to, n)
  return members, #members == n and '(' .. members[n] or nil
end

local function inspect()
  local from, members, more = ARGV[4], nil, nil
  if from == '' then
    grantNext()
    from = '[q'
  end
  if string.sub(from, 2, 2) == 'q' then
    members, more = some(from, '(r')
    for _, place in ipairs(members) do
      local r = get('w', name(place)) or stranger(place)
      if waits(r) then waiting[#waiting + 1] = r.member end
    end
    if more then return more end
    from = '[s'
  end
  for _, kind in ipairs({'s', 'x'}) do
    if string.sub(from, 2, 2) == kind then
      members, more = some(from, '(' .. string.char(string.byte(kind) + 1))
      for _, member in ipairs(members) do
        if read(member).expiry > now then holding[#holding + 1] = member end
      end
      if more then return more end
      from = '[x'
    end
  end
  if held then holding[#holding + 1] = text('x', held) end
  return ''
end

local more = inspect()
mendAll()
return done({now, holding, waiting, more})
