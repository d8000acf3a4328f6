-- uses: clock
-- Move a cursor, if it still stands where it is expected. Writes {holdfast}:cursors:CHANNEL.
-- ARGV: channel, consumer, expected "EPOCH ID" or '', new "EPOCH ID" or '' to change nothing. Returns whether
-- it was moved.
redis.call('PERSIST', STORE) -- after a first write the server refuses none for lack of memory
local found = redis.call('HGET', key.cursors(ARGV[1]), ARGV[2])
if not found then return redis.error_reply('HFNOTFOUND') end
local place = string.match(found, '^%d+ (.*)$') or ''
if place ~= ARGV[3] or ARGV[4] == '' then return 0 end
redis.call('HSET', key.cursors(ARGV[1]), ARGV[2], NOW_TEXT .. ' ' .. ARGV[4])
return 1
