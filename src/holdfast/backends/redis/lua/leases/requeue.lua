-- uses: keys clock ids batch consumers jobs log dead_index purge revive
-- dead, scheduled, ready or leased → ready at the tail.
-- Writes {holdfast}:job:REF:ID, {holdfast}:dead:REF, {holdfast}:due:*, {holdfast}:ready:REF,
-- {holdfast}:scheduled:REF, {holdfast}:lane:REF:KEY, {holdfast}:live:REF, {holdfast}:counts:REF,
-- {holdfast}:clusters:REF, {holdfast}:cluster:REF:FINGERPRINT, {holdfast}:recount:REF, {holdfast}:event:*;
-- {holdfast}:wake; reads the stream.
-- ARGV: channel/consumer, id. Returns whether there was such a job.
local c, id = find_consumer(ARGV[1]), ARGV[2]
local job = c and read_job(c.ref, id)
if not job or not (LIVE[job.state] or job.state == 'dead') then return 0 end
revive(c, id, job)
commit()
redis.call('PUBLISH', WAKE, c.channel)
return 1
