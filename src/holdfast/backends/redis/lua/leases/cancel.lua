-- uses: exceptions
-- scheduled or ready → cancelled. Reads {holdfast}:event:*, {holdfast}:consumers:CHANNEL; writes
-- {holdfast}:job:REF:ID, {holdfast}:due:*, {holdfast}:ready:REF, {holdfast}:scheduled:REF,
-- {holdfast}:lane:REF:KEY, {holdfast}:live:REF, {holdfast}:ended:REF, {holdfast}:ahead:REF,
-- {holdfast}:counts:REF.
-- ARGV: channel, source, event id, consumer or '' for all. Returns how many jobs were cancelled.
local known = redis.call('GET', key.event(ARGV[1], ARGV[2], ARGV[3]))
if not known then return 0 end
local id, cancelled = string.match(known, ' (%d+%-%d+)$', 17), 0
local consumers = redis.call('HGETALL', key.consumers(ARGV[1]))
for i = 1, #consumers, 2 do
  local c = (ARGV[4] == '' or ARGV[4] == consumers[i]) and load_consumer(consumers[i + 1])
  local job = c and peek(c, id)
  if job and (job.state == 'scheduled' or job.state == 'ready') then
    take_out(c, id, job)
    displace(c, id, job)
    end_job(c, id, job, 'cancelled')
    cancelled = cancelled + 1
  end
end
commit()
return cancelled
