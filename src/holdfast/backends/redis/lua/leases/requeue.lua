-- uses: exceptions revive
-- dead, scheduled, ready or leased → ready at the tail.
-- Writes {holdfast}:job:REF:ID, {holdfast}:block:REF:BASE, {holdfast}:blocks:REF, {holdfast}:open:REF,
-- {holdfast}:ahead:REF, {holdfast}:dead:REF, {holdfast}:due:*, {holdfast}:ready:REF,
-- {holdfast}:scheduled:REF, {holdfast}:lane:REF:KEY, {holdfast}:live:REF, {holdfast}:counts:REF,
-- {holdfast}:clusters:REF, {holdfast}:cluster:REF:FINGERPRINT, {holdfast}:recount:REF, {holdfast}:event:*;
-- {holdfast}:wake; reads the stream.
-- ARGV: channel/consumer, id. Returns whether there was such a job (0 or 1), or 2 to be called again.
local c, id = find_consumer(ARGV[1]), ARGV[2]
local job = c and peek(c, id)
if not job or not (LIVE[job.state] or job.state == 'dead') then return 0 end
if job.waits and (c.ordered or job.special) then
  -- What is before it comes first: an earlier event of its key must not be passed.
  local take_up = c.ordered and take_up_jobs or take_up_special
  take_up(c, read_log(c.channel), PAGE)
  commit()
  job = read_job(c.ref, id)
  if not job then return 2 end
end
take_out(c, id, job)
revive(c, id, job)
commit()
redis.call('PUBLISH', WAKE, c.channel)
return 1
