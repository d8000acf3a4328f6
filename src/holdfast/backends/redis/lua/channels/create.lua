-- uses: log
-- Make sure that a channel is known. Writes {holdfast}:channels, {holdfast}:epochs:CHANNEL, {holdfast}:store.
-- ARGV: channel.
ensure_channel(ARGV[1])
return 1
