-- uses: noted
-- Note a page of what other clients have appended. Reads the stream and {holdfast}:event:*; writes
-- {holdfast}:log:CHANNEL, {holdfast}:special:CHANNEL, {holdfast}:repeats:CHANNEL, {holdfast}:event:*,
-- {holdfast}:behind, {holdfast}:store.
-- ARGV: channel. Returns whether there is more (0 or 1).
redis.call('PERSIST', STORE) -- after a first write the server refuses none for lack of memory
return note_entries(ARGV[1]).level and 0 or 1
