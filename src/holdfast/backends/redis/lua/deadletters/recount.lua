-- uses: locks dead_index consumers
-- One page of counting a consumer's dead letters anew. What enters or leaves the part that is behind it,
-- between two pages, is counted by whoever moves it (dead_index.lua), so that the last page compares what is
-- true then. Reads {holdfast}:lock:NAME, {holdfast}:dead:REF, {holdfast}:job:REF:ID; writes
-- {holdfast}:recount:REF, and to repair {holdfast}:counts:REF, {holdfast}:clusters:REF,
-- {holdfast}:cluster:REF:FINGERPRINT.
-- ARGV: REF, how many, 1 to repair or 0, lock, token. Returns nothing while there is more; then for each
-- reason whose count was wrong reason, counted, found.
fence(ARGV[4], ARGV[5])
local ref, limit, repair = ARGV[1], tonumber(ARGV[2]), ARGV[3] == '1'
if not load_consumer(ref) then return {} end
local name = key.recount(ref)
local reached = redis.call('HMGET', name, 'time', 'id')
local page = page_after(key.dead(ref), reached[1] or whole(FAR), reached[2] or '', limit)
for i = 1, #page, 2 do
  local f = redis.call('HMGET', key.job(ref, page[i]), 'state', 'reason', 'fingerprint')
  if f[1] == 'dead' then
    redis.call('HINCRBY', name, 'found:' .. f[2], 1)
    local cluster = key.cluster(ref, f[3] or '')
    local missing = repair and redis.call('ZADD', cluster, 'NX', page[i + 1], page[i]) == 1
    if missing then count_cluster(ref, f[3] or '', 1) end
  end
end
commit()
if #page == 2 * limit then
  redis.call('HSET', name, 'time', page[#page], 'id', page[#page - 1])
  redis.call('PEXPIRE', name, 3600000)
  return false
end

local counted, found, total = {}, {}, 0
local function collect(into, hash, prefix)
  local flat = redis.call('HGETALL', hash)
  for i = 1, #flat, 2 do
    local reason = string.match(flat[i], '^' .. prefix .. ':(.*)$')
    if reason then into[reason] = tonumber(flat[i + 1]) end
  end
end
collect(counted, key.counts(ref), 'dead')
collect(found, name, 'found')
redis.call('DEL', name)
local answer = {}
for reason in pairs(counted) do found[reason] = found[reason] or 0 end
for reason, number in pairs(found) do
  total = total + number
  if number ~= (counted[reason] or 0) then
    answer[#answer + 1] = {reason, counted[reason] or 0, number}
    if repair then redis.call('HSET', key.counts(ref), 'dead:' .. reason, number) end
  end
end
if repair then redis.call('HSET', key.counts(ref), 'dead', total) end
return answer
