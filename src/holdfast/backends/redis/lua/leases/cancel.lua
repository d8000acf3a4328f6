-- uses: exceptions
-- scheduled or ready → cancelled. Reads {holdfast}:event:*, {holdfast}:consumers:CHANNEL; writes
-- {holdfast}:job:REF:ID, {holdfast}:due:*, {holdfast}:ready:REF, {holdfast}:scheduled:REF,
-- {holdfast}:lane:REF:KEY, {holdfast}:live:REF, {holdfast}:ended:REF, {holdfast}:ahead:REF,
-- {holdfast}:counts:REF, {holdfast}:consumer:REF.
-- ARGV: channel, source, event id, consumer or '' for all. Returns how many jobs were cancelled, and whether it
-- has to be called again (0 or 1).
local known = redis.call('GET', key.event(ARGV[1], ARGV[2], ARGV[3]))
if not known then return {0, 0} end
local id, cancelled, left, again = string.match(known, ' (%d+%-%d+)$', 17), 0, PAGE, 0
local consumers = redis.call('HGETALL', key.consumers(ARGV[1]))
for i = 1, #consumers, 2 do
  local c = (ARGV[4] == '' or ARGV[4] == consumers[i]) and load_consumer(consumers[i + 1])
  local job = c and peek(c, id)
  if job and job.special then
    left = left - take_up_special(c, read_log(c.channel), left)
    commit()
    job = read_job(c.ref, id)
    again = job and again or 1
  end
  if job and (job.state == 'scheduled' or job.state == 'ready') then
    take_out(c, id, job)
    displace(c, id, job)
    end_job(c, id, job, 'cancelled')
    cancelled = cancelled + 1
  end
end
commit()
return {cancelled, again}
