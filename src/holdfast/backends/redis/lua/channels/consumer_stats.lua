-- uses: keys ids
-- Counts of a consumer, and what waits longest. Reads {holdfast}:counts:REF, {holdfast}:ready:REF,
-- {holdfast}:scheduled:REF.
-- ARGV: channel, consumer. Returns the flat counts, the due time of the oldest ready job or '', the next due
-- time or ''; nothing where there is no such consumer.
local ref = redis.call('HGET', key.consumers(ARGV[1]), ARGV[2])
if not ref then return false end
local oldest, after = '', '-inf'
-- The first of each priority is its oldest, and there are at most 201 priorities.
while true do
  local first = redis.call('ZRANGEBYSCORE', key.ready(ref), after, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  if not first[1] then break end
  local due = string.sub(first[1], 1, 16)
  if oldest == '' or due < oldest then oldest = due end
  after = '(' .. first[2]
end
local scheduled = redis.call('ZRANGE', key.scheduled(ref), 0, 0, 'WITHSCORES')
return {redis.call('HGETALL', key.counts(ref)), oldest, scheduled[2] or ''}
