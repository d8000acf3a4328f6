-- uses: log
-- Make a channel refuse publishes, or take them again. Writes {holdfast}:log:CHANNEL, and for a new channel
-- {holdfast}:channels and {holdfast}:epochs:CHANNEL.
-- ARGV: channel, 1 or 0.
redis.call('PERSIST', STORE) -- after a first write the server refuses none for lack of memory
ensure_channel(ARGV[1])
if ARGV[2] == '1' then
  redis.call('HSET', key.log(ARGV[1]), 'full', 1)
else
  redis.call('HDEL', key.log(ARGV[1]), 'full')
end
return 1
