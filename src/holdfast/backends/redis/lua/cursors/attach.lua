-- uses: milestones
-- Create a stream consumer, or answer the one that is there. Reads the stream; writes
-- {holdfast}:cursors:CHANNEL, and for a new channel {holdfast}:channels and {holdfast}:epochs:CHANNEL; notes
-- the end of the log in {holdfast}:chart:CHANNEL.
-- ARGV: channel, consumer, 'latest', 'earliest' or the id after which to begin. Returns "MOVED EPOCH ID" or
-- "MOVED".
local channel, name, start = ARGV[1], ARGV[2], ARGV[3]
local found = redis.call('HGET', key.cursors(channel), name)
if found then return found end
ensure_channel(channel)
local log = look(channel)
local id = start
if start == 'latest' then id = log.last end
if start == 'earliest' then id = nil end
-- What is gone is behind whoever begins now.
if log.trimmed and (not id or id_less(id, log.trimmed)) then id = log.trimmed end
local cursor = NOW_TEXT .. (id and ' ' .. epoch_of(channel, id) .. ' ' .. id or '')
redis.call('HSET', key.cursors(channel), name, cursor)
return cursor
