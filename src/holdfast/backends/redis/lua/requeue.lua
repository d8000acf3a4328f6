-- uses: keys clock ids batch consumers jobs log burials
-- dead, scheduled, ready or leased → ready at the tail, with fresh budgets and its whole time to wait. The
-- token rises, so that a lease that still runs is lost.
-- Writes {holdfast}:job:REF:ID, {holdfast}:dead:REF, {holdfast}:due:*, {holdfast}:ready:REF,
-- {holdfast}:scheduled:REF, {holdfast}:lane:REF:KEY, {holdfast}:live:REF, {holdfast}:counts:REF,
-- {holdfast}:event:*; {holdfast}:wake; reads the stream.
-- ARGV: channel/consumer, id. Answers whether there was such a job.
local c, id = find_consumer(ARGV[1]), ARGV[2]
local job = c and read_job(c.ref, id)
if not job or not (LIVE[job.state] or job.state == 'dead') then return 0 end
local name = key.job(c.ref, id)
if job.state == 'dead' then
  exhume(c, id, job)
  -- Once it was trimmed, the job goes on with what it kept; until then it holds its entry in the log again.
  if read_entry(c.channel, id) then
    redis.call('HDEL', name, 'entry')
    hold_entry(c, id)
  end
  if job.key then join_lane(c, id, job.key) end
else
  displace(c, id, job)
end
change_state(c, job, 'ready')
job.due, job.expires = NOW, c.expires_after and later(NOW, c.expires_after)
redis.call('HSET', name, 'state', 'ready', 'due', NOW, 'token', job.token + 1, 'attempts', 0,
  'abandonments', 0)
redis.call('HDEL', name, 'lease', 'worker', 'reason', 'fingerprint', 'ended', 'source', 'event', 'expires')
if job.expires then redis.call('HSET', name, 'expires', job.expires) end
place(c, id, job)
commit()
redis.call('PUBLISH', WAKE, c.channel)
return 1
