-- uses: keys clock ids batch consumers jobs log
-- Lease ready jobs: by priority, then due time. Entries that nobody has turned into jobs yet come first.
-- Reads the stream and {holdfast}:consumer:REF; writes {holdfast}:ready:REF, {holdfast}:job:REF:ID,
-- {holdfast}:due:lease, {holdfast}:due:expiry, {holdfast}:counts:REF, and what publish writes for new jobs.
-- ARGV: channel/consumer, limit, worker.
-- Returns the deadline, then for each job: id, epoch, attempts, abandonments, token, the fields of its entry
-- where it came back from the dead after the log was trimmed, and the data that replaces its event's where it
-- came back with other data; where these are large, there are fewer jobs. The other events are fetched from the
-- stream by the caller: an entry never changes, and a server copies it faster than a script.

redis.call('PERSIST', STORE) -- after a first write the server refuses none for lack of memory
local RANGE, MOST_BYTES = 16, 4000000
local c = find_consumer(ARGV[1])
if not c then return redis.error_reply('HFNOTFOUND') end
local deadline = later(NOW, c.lease)
local answer, limit, worker = {whole(deadline)}, tonumber(ARGV[2]), ARGV[3]
if c.paused then return answer end
if not c.target then
  catch_up(c, PAGE)
  commit()
end

local leased, skipped, bytes = 0, 0, 0
while leased < limit and skipped < PAGE and bytes < MOST_BYTES do
  local popped = redis.call('ZPOPMIN', key.ready(c.ref), math.min(limit - leased, RANGE))
  if #popped == 0 then break end
  for i = 1, #popped, 2 do
    local id = unrank(popped[i])
    local name = key.job(c.ref, id)
    local f = redis.call('HMGET', name, 'state', 'attempts', 'abandonments', 'token', 'expires', 'epoch',
      'entry', 'patch')
    -- What has expired only waits for the lifecycle, which finds it by its expiry.
    if f[1] == 'ready' and (not f[5] or tonumber(f[5]) > NOW) then
      local attempts, token, member = (tonumber(f[2]) or 0) + 1, next_token(f[4]), c.ref .. ':' .. id
      redis.call('HSET', name, 'state', 'leased', 'attempts', attempts, 'token', token, 'lease', answer[1],
        'worker', worker)
      defer('ZADD', LEASES, answer[1], member)
      if f[5] then defer('ZREM', EXPIRIES, member) end
      answer[#answer + 1] = {id, f[6], attempts, tonumber(f[3]) or 0, token,
        f[7] and kept_entry(c.ref, id)[2], f[8] or nil}
      leased, bytes = leased + 1, bytes + #(f[7] or '') + #(f[8] or '')
    else
      skipped = skipped + 1
    end
  end
end
count(c.ref, 'ready', -leased)
count(c.ref, 'leased', leased)
commit()
return answer
