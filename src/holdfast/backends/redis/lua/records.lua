-- uses: keys clock ids batch consumers jobs log
-- Jobs as operators see them. Reads {holdfast}:due:lease, {holdfast}:event:*, {holdfast}:consumers:CHANNEL,
-- {holdfast}:consumer:REF, {holdfast}:job:REF:ID and the stream.
-- ARGV: 'stuck', limit: leased jobs past their deadline, oldest first; or 'event', channel, source, event id:
-- the job of every consumer. Answers for each: channel, consumer, id, event id, source, flat hash of the job.
local answer = {}
local function add(c, id, source, event)
  local job = redis.call('HGETALL', key.job(c.ref, id))
  if #job > 0 then answer[#answer + 1] = {c.channel, c.name, id, event, source, job} end
end

if ARGV[1] == 'stuck' then
  for _, name in ipairs(redis.call('ZRANGEBYSCORE', LEASES, '-inf', NOW, 'LIMIT', 0, ARGV[2])) do
    local ref, id = string.match(name, '^(%d+):(.*)$')
    local c = load_consumer(ref)
    local event = c and job_entry(c, id)
    if c then add(c, id, event and (event.source or 'default') or '', event and (event.id or id) or '') end
  end
  return answer
end
local known = redis.call('GET', key.event(ARGV[2], ARGV[3], ARGV[4]))
if known then
  local id = string.match(known, ' (%d+%-%d+)$', 17)
  for _, ref in ipairs(redis.call('HVALS', key.consumers(ARGV[2]))) do
    add(load_consumer(ref), id, ARGV[3], ARGV[4])
  end
end
return answer
