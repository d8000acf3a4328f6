-- uses: keys
-- Remove a stream consumer. Writes {holdfast}:cursors:CHANNEL.
-- ARGV: channel, consumer. Returns whether there was one.
return redis.call('HDEL', key.cursors(ARGV[1]), ARGV[2])
