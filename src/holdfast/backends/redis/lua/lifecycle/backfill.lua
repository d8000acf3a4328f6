-- uses: exceptions
-- Look after what phase one named: take up special entries of a channel, up to a limit over all of its
-- consumers; or see when the first event of a consumer that waits can expire.
-- Reads the stream, {holdfast}:consumers:CHANNEL; writes {holdfast}:consumer:REF, {holdfast}:behind,
-- {holdfast}:due:*, {holdfast}:job:REF:ID, {holdfast}:live:REF, {holdfast}:ready:REF,
-- {holdfast}:scheduled:REF, {holdfast}:lane:REF:KEY, {holdfast}:counts:REF; {holdfast}:wake.
-- ARGV: what to look after, limit. Returns how many entries were taken up.
redis.call('PERSIST', STORE) -- after a first write the server refuses none for lack of memory
local ref = string.match(ARGV[1], '^#(%d+)$')
if ref then
  local c = load_consumer(ref)
  if c then set_head(c, note_entries(c.channel)) else redis.call('ZREM', HEADS, ref) end
  commit()
  return 0
end
local log, taken, left = note_entries(ARGV[1]), 0, tonumber(ARGV[2])
local all = log.level
for _, each in ipairs(redis.call('HVALS', key.consumers(ARGV[1]))) do
  local some, more = take_up_special(load_consumer(each), log, left)
  taken, left, all = taken + some, math.max(0, left - some), all and not more
  if more and left == 0 then break end
end
commit()
if all then redis.call('SREM', BEHIND, ARGV[1]) end
if taken > 0 then redis.call('PUBLISH', WAKE, ARGV[1]) end
return taken
