-- uses: exceptions bury
-- leased or waiting → dead, or discarded, with its record, its count and its copy in the dead-letter channel.
-- Reads the stream and {holdfast}:consumer:REF; writes {holdfast}:job:REF:ID, {holdfast}:block:REF:BASE,
-- {holdfast}:blocks:REF, {holdfast}:open:REF, {holdfast}:ahead:REF, {holdfast}:dead:REF, {holdfast}:ended:REF,
-- {holdfast}:due:*, {holdfast}:counts:REF, {holdfast}:lane:REF:KEY, {holdfast}:ready:REF,
-- {holdfast}:scheduled:REF, {holdfast}:live:REF, {holdfast}:event:*, {holdfast}:clusters:REF,
-- {holdfast}:cluster:REF:FINGERPRINT, {holdfast}:recount:REF, and for the dead-letter channel what publish
-- writes.
-- ARGV: 'held' (leased under the token), 'overdue' (and past its deadline) or 'waiting' (expired while it
-- waited); then for each job channel/consumer or REF, id, token, reason, error (JSON), fingerprint. Returns
-- digits: see complete. There are fewer where the events are large: then the rest comes in another call.
redis.call('PERSIST', STORE) -- after a first write the server refuses none for lack of memory
local MOST_BYTES = 4000000
local mode, answers, bytes = ARGV[1], {}, 0
for i = 2, #ARGV, 6 do
  if bytes > MOST_BYTES then break end
  local c, id = find_consumer(ARGV[i]), ARGV[i + 1]
  local token, job, accepted = tonumber(ARGV[i + 2]), nil, nil
  if mode == 'waiting' then
    job = c and peek(c, id)
    accepted = job and job.token == token and job.state ~= 'leased' and LIVE[job.state] and job.expires
      and job.expires <= NOW
  else
    job = c and peek_leased(c, id, token)
    accepted = job and (mode == 'held' or job.lease <= NOW)
  end
  if accepted then
    take_out(c, id, job)
    bytes = bytes + bury(c, id, job, ARGV[i + 3], ARGV[i + 4], ARGV[i + 5], mode == 'overdue')
  end
  if not c or (not job and not read_job(c.ref, id)) then
    defer('ZREM', mode == 'waiting' and EXPIRIES or LEASES, ARGV[i] .. ':' .. id)
  end
  answers[#answers + 1] = accepted and '1' or '0'
end
close_channels()
if bytes > MOST_BYTES then collectgarbage() end
return table.concat(answers)
