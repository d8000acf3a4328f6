-- uses: keys
-- The oldest and the newest of a consumer's ready and dead jobs. Reads {holdfast}:ready:REF, {holdfast}:dead:REF.
-- ARGV: channel, consumer. Returns due times of ready jobs, then times of death, each '' where there is none;
-- nothing where there is no such consumer.
local ref = redis.call('HGET', key.consumers(ARGV[1]), ARGV[2])
if not ref then return false end
local oldest, newest, after = '', '', '-inf'
-- The first of each priority is its oldest and the last its newest; there are at most 201 priorities.
while true do
  local first = redis.call('ZRANGEBYSCORE', key.ready(ref), after, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  if not first[1] then break end
  local last = redis.call('ZREVRANGEBYSCORE', key.ready(ref), first[2], first[2], 'LIMIT', 0, 1)
  local from, to = string.sub(first[1], 1, 16), string.sub(last[1], 1, 16)
  if oldest == '' or from < oldest then oldest = from end
  if to > newest then newest = to end
  after = '(' .. first[2]
end
local first = redis.call('ZRANGE', key.dead(ref), 0, 0, 'WITHSCORES')
local last = redis.call('ZRANGE', key.dead(ref), -1, -1, 'WITHSCORES')
return {oldest, newest, first[2] or '', last[2] or ''}
