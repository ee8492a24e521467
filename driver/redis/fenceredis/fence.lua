local n, m = #KEYS, #ARGV
local bar, token, owner, shared = redis.call('GET', KEYS[n]), ARGV[m - 2], ARGV[m - 1], ARGV[m] == '1'
if bar and not string.find(bar, '^' .. string.rep('%d', 20) .. ' [%w_-]+$') then
  return redis.error_reply('DLOCKOTHER the key has something else than a mark')
end
bar = bar or ''
local last = string.sub(bar, 1, 20)
if token < last or token == last and owner ~= string.sub(bar, 22) then
  return redis.error_reply('DLOCKSTALE a later holder was here')
end
if not shared and token ~= last then redis.call('SET', KEYS[n], token .. ' ' .. owner) end
KEYS[n], ARGV[m], ARGV[m - 1], ARGV[m - 2] = nil, nil, nil, nil
