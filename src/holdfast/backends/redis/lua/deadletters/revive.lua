-- uses: revive
-- dead → ready at the tail, with other data from now on where some is given. Touches what requeue does.
-- Writes {holdfast}:job:REF:ID, {holdfast}:dead:REF, {holdfast}:due:expiry, {holdfast}:ready:REF,
-- {holdfast}:lane:REF:KEY, {holdfast}:live:REF, {holdfast}:counts:REF, {holdfast}:clusters:REF,
-- {holdfast}:cluster:REF:FINGERPRINT, {holdfast}:recount:REF, {holdfast}:event:*; {holdfast}:wake; reads the
-- stream.
-- ARGV: channel/consumer, '=' and the data or '', ids. Returns digits: see complete.
local c, patch, answers = find_consumer(ARGV[1]), ARGV[2], {}
for i = 3, #ARGV do
  local id = ARGV[i]
  local job = c and read_job(c.ref, id)
  local dead = job and job.state == 'dead'
  if dead then
    revive(c, id, job)
    if patch ~= '' then redis.call('HSET', key.job(c.ref, id), 'patch', string.sub(patch, 2)) end
  end
  answers[#answers + 1] = dead and '1' or '0'
end
commit()
if c then redis.call('PUBLISH', WAKE, c.channel) end
return table.concat(answers)
