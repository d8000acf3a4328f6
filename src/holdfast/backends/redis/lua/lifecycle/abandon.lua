-- uses: exceptions
-- leased → ready at the tail, for leases that are still overdue: the attempt is given back and an abandonment
-- is counted. Writes {holdfast}:job:REF:ID, {holdfast}:block:REF:BASE, {holdfast}:blocks:REF,
-- {holdfast}:open:REF, {holdfast}:live:REF, {holdfast}:due:*, {holdfast}:ready:REF, {holdfast}:counts:REF;
-- reads {holdfast}:lane:REF:KEY; {holdfast}:wake.
-- ARGV: for each job REF, id, token, error (JSON). Returns how many were abandoned.
redis.call('PERSIST', STORE) -- after a first write the server refuses none for lack of memory
local abandoned, channels = 0, {}
for i = 1, #ARGV, 4 do
  local c, id = load_consumer(ARGV[i]), ARGV[i + 1]
  local job = c and peek_leased(c, id, tonumber(ARGV[i + 2]))
  if job and job.lease <= NOW then
    take_out(c, id, job)
    displace(c, id, job)
    change_state(c, job, 'ready')
    job.due = NOW
    redis.call('HSET', key.job(c.ref, id), 'state', 'ready', 'due', NOW, 'attempts', job.attempts - 1,
      'abandonments', job.abandonments + 1)
    note_error(c.ref, id, ARGV[i + 3])
    redis.call('HDEL', key.job(c.ref, id), 'lease', 'worker')
    place(c, id, job)
    abandoned = abandoned + 1
    channels[c.channel] = true
  elseif not c or (not job and not read_job(c.ref, id)) then
    defer('ZREM', LEASES, ARGV[i] .. ':' .. id)
  end
end
commit()
for channel in pairs(channels) do redis.call('PUBLISH', WAKE, channel) end
return abandoned
