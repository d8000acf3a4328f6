-- uses: locks purge
-- dead → purged, for what died before a time, oldest first for each consumer. Writes {holdfast}:job:REF:ID,
-- {holdfast}:dead:REF, {holdfast}:counts:REF, {holdfast}:clusters:REF, {holdfast}:cluster:REF:FINGERPRINT,
-- {holdfast}:recount:REF, {holdfast}:event:*; reads {holdfast}:lock:NAME, {holdfast}:consumers:CHANNEL.
-- ARGV: channel, before (µs), limit, lock, token. Returns name and number for each consumer that had some.
redis.call('PERSIST', STORE) -- after a first write the server refuses none for lack of memory
fence(ARGV[4], ARGV[5])
local answer, left = {}, tonumber(ARGV[3])
for _, ref in ipairs(redis.call('HVALS', key.consumers(ARGV[1]))) do
  local c, purged = load_consumer(ref), 0
  local dead = left > 0
    and redis.call('ZRANGEBYSCORE', key.dead(ref), '-inf', '(' .. ARGV[2], 'LIMIT', 0, left) or {}
  for _, id in ipairs(dead) do
    local job = read_job(ref, id)
    if job and job.state == 'dead' then
      purge(c, id, job)
      purged = purged + 1
    end
  end
  left = left - purged
  if purged > 0 then answer[#answer + 1] = {c.name, purged} end
end
commit()
return answer
