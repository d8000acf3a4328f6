-- uses: views
-- One dead letter with its event. Reads {holdfast}:consumer:REF, {holdfast}:job:REF:ID and the stream.
-- ARGV: channel/consumer, id. Returns what leases/jobs returns, the fields of its entry or nothing, the data
-- that replaces its event's or nothing; nothing at all where it is not dead.
local c, id = find_consumer(ARGV[1]), ARGV[2]
local row = view_dead(c, id)
if not row then return false end
local _, entry = job_entry(c, id)
return {row, entry and entry[2] or false, redis.call('HGET', key.job(c.ref, id), 'patch')}
