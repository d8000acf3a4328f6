-- uses: exceptions
-- leased → scheduled or ready. Without an error the attempt is given back; without a delay the job returns to
-- its old place. Writes {holdfast}:job:REF:ID, {holdfast}:block:REF:BASE, {holdfast}:blocks:REF,
-- {holdfast}:open:REF, {holdfast}:live:REF, {holdfast}:due:*, {holdfast}:ready:REF, {holdfast}:scheduled:REF,
-- {holdfast}:counts:REF; reads {holdfast}:consumer:REF, {holdfast}:lane:REF:KEY and the stream.
-- ARGV: for each job channel/consumer, id, token, delay (µs) or '', error (JSON) or ''. Returns digits: see
-- complete.
redis.call('PERSIST', STORE) -- after a first write the server refuses none for lack of memory
local answers = {}
for i = 1, #ARGV, 5 do
  local c, id, delay, failure = find_consumer(ARGV[i]), ARGV[i + 1], tonumber(ARGV[i + 3]), ARGV[i + 4]
  local job = c and peek_leased(c, id, tonumber(ARGV[i + 2]))
  if job then
    take_out(c, id, job)
    displace(c, id, job)
    job.due = delay and later(NOW, delay) or job.due
    change_state(c, job, delay and delay > 0 and 'scheduled' or 'ready')
    local name = key.job(c.ref, id)
    redis.call('HSET', name, 'state', job.state, 'due', job.due)
    redis.call('HDEL', name, 'lease', 'worker')
    if failure == '' then
      redis.call('HSET', name, 'attempts', job.attempts - 1)
    else
      note_error(c.ref, id, failure)
    end
    place(c, id, job)
  end
  answers[#answers + 1] = job and '1' or '0'
end
commit()
return table.concat(answers)
