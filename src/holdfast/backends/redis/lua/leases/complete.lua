-- uses: keys clock ids batch consumers jobs
-- leased → done. Reads {holdfast}:consumer:REF; writes {holdfast}:job:REF:ID, {holdfast}:due:lease,
-- {holdfast}:counts:REF, {holdfast}:live:REF, {holdfast}:lane:REF:KEY and, for the next of a lane,
-- {holdfast}:ready:REF.
-- ARGV: for each job channel/consumer, id, token. Returns one digit for each: 1 accepted, 0 refused.
redis.call('PERSIST', STORE) -- after a first write the server refuses none for lack of memory
local answers = {}
for i = 1, #ARGV, 3 do
  local c, id = find_consumer(ARGV[i]), ARGV[i + 1]
  local f = c and redis.call('HMGET', key.job(c.ref, id), 'state', 'token', 'key', 'patch') or {}
  local accepted = f[1] == 'leased' and f[2] == ARGV[i + 2]
  if accepted then
    defer('ZREM', LEASES, c.ref .. ':' .. id)
    end_job(c, id, {state = 'leased', key = f[3], patch = f[4]}, 'done')
  end
  answers[#answers + 1] = accepted and '1' or '0'
end
commit()
return table.concat(answers)
