-- uses: exceptions
-- scheduled or ready → cancelled, and leased too where that is asked for: then listeners are told. Reads
-- {holdfast}:event:*, {holdfast}:consumers:CHANNEL; writes {holdfast}:job:REF:ID, {holdfast}:due:*,
-- {holdfast}:ready:REF, {holdfast}:scheduled:REF, {holdfast}:lane:REF:KEY, {holdfast}:live:REF,
-- {holdfast}:ended:REF, {holdfast}:ahead:REF, {holdfast}:counts:REF, {holdfast}:consumer:REF,
-- {holdfast}:block:REF:BASE, {holdfast}:blocks:REF, {holdfast}:open:REF; {holdfast}:wake.
-- ARGV: channel, source, event id, consumer or '' for all, leased ones too (0 or 1), who and why, each '' where
-- it is not known. Returns how many jobs were cancelled, and whether it has to be called again (0 or 1).
local known = redis.call('GET', key.event(ARGV[1], ARGV[2], ARGV[3]))
if not known then return {0, 0} end
local id, cancelled, left, again = string.match(known, ' (%d+%-%d+)$', 17), 0, PAGE, 0
local consumers, told = redis.call('HGETALL', key.consumers(ARGV[1])), {}
for i = 1, #consumers, 2 do
  local c = (ARGV[4] == '' or ARGV[4] == consumers[i]) and load_consumer(consumers[i + 1])
  local job = c and peek(c, id)
  if job and job.special then
    left = left - take_up_special(c, read_log(c.channel), left)
    commit()
    job = read_job(c.ref, id)
    again = job and again or 1
  end
  local leased = job and job.state == 'leased'
  if job and (job.state == 'scheduled' or job.state == 'ready' or leased and ARGV[5] == '1') then
    take_out(c, id, job)
    displace(c, id, job)
    end_job(c, id, job, 'cancelled')
    if ARGV[6] ~= '' then redis.call('HSET', key.job(c.ref, id), 'by', ARGV[6]) end
    if ARGV[7] ~= '' then redis.call('HSET', key.job(c.ref, id), 'reason', ARGV[7]) end
    if leased then told[#told + 1] = table.concat({c.channel, c.name, id}, '/') end
    cancelled = cancelled + 1
  end
end
commit()
for _, notice in ipairs(told) do redis.call('PUBLISH', WAKE, notice) end
return {cancelled, again}
