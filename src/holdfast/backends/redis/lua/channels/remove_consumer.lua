-- uses: exceptions purge
-- Remove some of what a retired consumer has: its dead letters, its live jobs, what has ended of those that
-- had a record of their own, its blocks. In the end the consumer itself.
-- Reads and writes {holdfast}:consumer:REF, {holdfast}:removals, {holdfast}:job:REF:ID, {holdfast}:dead:REF,
-- {holdfast}:live:REF, {holdfast}:ended:REF, {holdfast}:block:REF:BASE, {holdfast}:blocks:REF,
-- {holdfast}:open:REF, {holdfast}:ready:REF, {holdfast}:scheduled:REF, {holdfast}:lane:REF:KEY,
-- {holdfast}:ahead:REF, {holdfast}:due:*, {holdfast}:counts:REF, {holdfast}:clusters:REF,
-- {holdfast}:cluster:REF:FINGERPRINT, {holdfast}:recount:REF, {holdfast}:event:*.
-- ARGV: REF, limit. Returns how many were live, were dead, had ended, and whether nothing is left (0 or 1).
redis.call('PERSIST', STORE) -- after a first write the server refuses none for lack of memory
local ref, limit = ARGV[1], tonumber(ARGV[2])
local f = redis.call('HMGET', key.consumer(ref), 'channel', 'name')
if not f[1] then return {0, 0, 0, 1} end
local c, live, dead, ended = {ref = ref, channel = f[1]}, 0, 0, 0

local function remove(id)
  local job = read_job(ref, id)
  local state = job and job.state
  if state == 'dead' then
    take_from_dead(c, id)
    dead = dead + 1
  elseif LIVE[state] then
    displace(c, id, job)
    if job.key then redis.call('ZREM', key.lane(ref, job.key), pad(id)) end
    live = live + 1
  elseif state then
    ended = ended + 1
  end
  if state then count(ref, state, -1) end
  redis.call('ZREM', key.dead(ref), id)
  redis.call('ZREM', key.live(ref), id)
  redis.call('ZREM', key.ended(ref), id)
  redis.call('UNLINK', key.job(ref, id))
end

for _, order in ipairs({key.dead(ref), key.live(ref), key.ended(ref)}) do
  local ids = redis.call('ZRANGE', order, 0, limit - 1)
  if #ids > 0 then
    for _, id in ipairs(ids) do remove(id) end
    commit()
    return {live, dead, ended, 0}
  end
end

local names = redis.call('ZRANGE', key.blocks(ref), 0, math.max(0, math.floor(limit / SIZE)))
for _, name in ipairs(names) do
  local block = load_block(ref, tonumber(string.match(name, ' (%d+)$')))
  if block then
    for at = 0, block.n - 1 do ended = ended + (member_state(block, at) == '0' and 1 or 0) end
    live = live + block.left
    count(ref, 'leased', -block.left)
    redis.call('ZREM', LEASES, lease_name(block))
    redis.call('UNLINK', block.name)
  end
  redis.call('ZREM', key.blocks(ref), name)
end
commit()
if #names > 0 then return {live, dead, ended, 0} end
redis.call('UNLINK', key.consumer(ref), key.counts(ref), key.clusters(ref), key.recount(ref), key.ready(ref),
  key.scheduled(ref), key.ahead(ref), key.open(ref))
redis.call('HDEL', REMOVALS, f[1] .. '/' .. f[2])
return {0, 0, 0, 1}
