-- uses: purge
-- dead → purged. Writes {holdfast}:job:REF:ID, {holdfast}:dead:REF, {holdfast}:counts:REF,
-- {holdfast}:clusters:REF, {holdfast}:cluster:REF:FINGERPRINT, {holdfast}:recount:REF, {holdfast}:event:*.
-- ARGV: channel/consumer, ids. Returns digits: see complete.
redis.call('PERSIST', STORE) -- after a first write the server refuses none for lack of memory
local c, answers = find_consumer(ARGV[1]), {}
for i = 2, #ARGV do
  local job = c and read_job(c.ref, ARGV[i])
  local dead = job and job.state == 'dead'
  if dead then purge(c, ARGV[i], job) end
  answers[#answers + 1] = dead and '1' or '0'
end
commit()
return table.concat(answers)
