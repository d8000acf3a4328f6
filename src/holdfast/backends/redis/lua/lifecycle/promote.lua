-- uses: jobs
-- scheduled → ready, for what is still due. Writes {holdfast}:job:REF:ID, {holdfast}:due:schedule,
-- {holdfast}:scheduled:REF, {holdfast}:ready:REF, {holdfast}:counts:REF; reads {holdfast}:lane:REF:KEY;
-- {holdfast}:wake.
-- ARGV: for each job REF, id. Returns how many were promoted.
redis.call('PERSIST', STORE) -- after a first write the server refuses none for lack of memory
local promoted, channels = 0, {}
for i = 1, #ARGV, 2 do
  local c, id = load_consumer(ARGV[i]), ARGV[i + 1]
  local job = c and read_job(c.ref, id)
  if job and job.state == 'scheduled' and job.due <= NOW then
    displace(c, id, job)
    change_state(c, job, 'ready')
    redis.call('HSET', key.job(c.ref, id), 'state', 'ready')
    place(c, id, job)
    promoted = promoted + 1
    channels[c.channel] = true
  elseif not job then
    defer('ZREM', SCHEDULES, ARGV[i] .. ':' .. id)
  end
end
commit()
for channel in pairs(channels) do redis.call('PUBLISH', WAKE, channel) end
return promoted
