-- uses: keys clock ids batch consumers jobs log
-- One page of older entries for one consumer. Reads the stream; writes {holdfast}:consumer:REF,
-- {holdfast}:behind and what publish writes for its jobs; {holdfast}:wake.
-- ARGV: ref, limit. Returns how many entries it looked at.
local c = load_consumer(ARGV[1])
if not c then
  redis.call('SREM', BEHIND, ARGV[1])
  return 0
end
local seen = catch_up(c, tonumber(ARGV[2]))
commit()
if seen > 0 then redis.call('PUBLISH', WAKE, c.channel) end
return seen
