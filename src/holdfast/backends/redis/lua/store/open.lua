-- uses: clock ids
-- Make the store known to this version. Where the server is not the one that was last seen, a new epoch begins,
-- and tokens leap to the time: no job and no lock had so many of them before.
-- Writes {holdfast}:store, {holdfast}:epochs:CHANNEL; reads {holdfast}:channels and the streams' last ids.
-- ARGV: schema, the server's run id or '', history and window (ms), each '' to leave it as it is. Returns the
-- epoch.

local DAY, LEAP = 86400000, 1000000
local stored = redis.call('HMGET', STORE, 'schema', 'run_id', 'history', 'window')
if stored[1] and stored[1] ~= ARGV[1] then
  return redis.error_reply('HFSCHEMA ' .. stored[1])
end
local epoch, tokens = tonumber(EPOCH), TOKENS
-- A restarted or promoted server may lack the newest entries that its clients have seen.
if stored[2] and ARGV[2] ~= '' and stored[2] ~= ARGV[2] then
  redis.call('PERSIST', STORE) -- after a first write the server refuses none for lack of memory
  epoch = math.max(epoch + 1, TODAY)
  tokens = math.max(tokens + LEAP, NOW)
  for _, channel in ipairs(redis.call('HKEYS', CHANNELS)) do
    local name, last = key.epochs(channel), last_id(key.stream(channel))
    -- An epoch in which nothing was appended needs no mark of its own.
    if string.match(redis.call('LINDEX', name, -1) or '', ' (.*)$') == last then redis.call('RPOP', name) end
    redis.call('RPUSH', name, epoch .. ' ' .. last)
  end
end
local function kept(given, before, default)
  return given ~= '' and given or before or whole(default)
end
local fields = {
  schema = ARGV[1], epoch = whole(epoch),
  history = kept(ARGV[3], stored[3], 7 * DAY), window = kept(ARGV[4], stored[4], 14 * DAY),
}
if ARGV[2] ~= '' then fields.run_id = ARGV[2] end
if tokens > 0 then fields.tokens = whole(tokens) end
-- Every new connection comes here, also where memory has run out: mostly there is nothing to write.
for name, value in pairs(fields) do
  if redis.call('HGET', STORE, name) ~= value then redis.call('HSET', STORE, name, value) end
end
return epoch
