-- uses: keys clock ids batch consumers jobs dead_index purge
-- Remove some of what a retired consumer has: its dead letters and live jobs, which are in order; then what is
-- left of its history, which is not, by a walk through all keys of the server. In the end the consumer itself.
-- Reads and writes {holdfast}:consumer:REF, {holdfast}:removals, {holdfast}:job:REF:ID, {holdfast}:dead:REF,
-- {holdfast}:live:REF, {holdfast}:ready:REF, {holdfast}:scheduled:REF, {holdfast}:lane:REF:KEY,
-- {holdfast}:due:*, {holdfast}:counts:REF, {holdfast}:clusters:REF, {holdfast}:cluster:REF:FINGERPRINT,
-- {holdfast}:recount:REF, {holdfast}:event:*.
-- ARGV: REF, limit, how many keys to look at. Returns how many were live, were dead, had ended, and whether
-- nothing is left (0 or 1).
redis.call('PERSIST', STORE) -- after a first write the server refuses none for lack of memory
local ref, limit = ARGV[1], tonumber(ARGV[2])
local f = redis.call('HMGET', key.consumer(ref), 'channel', 'name', 'walk')
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
  redis.call('UNLINK', key.job(ref, id))
end

local function remove_all(ids)
  for _, id in ipairs(ids) do remove(id) end
  commit()
  return {live, dead, ended, 0}
end

for _, order in ipairs({key.dead(ref), key.live(ref)}) do
  local ids = redis.call('ZRANGE', order, 0, limit - 1)
  if #ids > 0 then return remove_all(ids) end
end

-- A walk means nothing to a server that was restarted: it begins anew in each epoch.
local epoch, cursor = string.match(f[3] or '', '^(%d+) (%d+)$')
local prefix, ids = key.job(ref, ''), {}
local page = redis.call('SCAN', epoch == EPOCH and cursor or '0', 'MATCH', prefix .. '*', 'COUNT', ARGV[3])
for i = 1, math.min(#page[2], limit) do ids[i] = string.sub(page[2][i], #prefix + 1) end
local answer = remove_all(ids)
if #page[2] > limit then return answer end
if page[1] ~= '0' then
  redis.call('HSET', key.consumer(ref), 'walk', EPOCH .. ' ' .. page[1])
  return answer
end
redis.call('UNLINK', key.consumer(ref), key.counts(ref), key.clusters(ref), key.recount(ref), key.ready(ref),
  key.scheduled(ref))
redis.call('HDEL', REMOVALS, f[1] .. '/' .. f[2])
answer[4] = 1
return answer
