-- uses: clock records
-- Write a state record whole, if it still has the expected revision. A record that is made anew has none of its
-- old revisions, nor 1, which is that of one that somebody else made. Writes the record's hash and
-- {holdfast}:store, {holdfast}:records, {holdfast}:records:PART, {holdfast}:parts.
-- ARGV: record, the field of the revision, expected revision (0: there is none), due (µs) or '', then the
-- fields by name and value. Returns the new revision, or nothing where it was refused.
local name, field = key.record(ARGV[1]), ARGV[2]
local revision = tonumber(redis.call('HGET', name, field)) or redis.call('EXISTS', name)
if revision ~= tonumber(ARGV[3]) then return false end
revision = next_revision(revision)
redis.call('DEL', name)
redis.call('HSET', name, field, whole(revision), unpack(ARGV, 5))
set_due(ARGV[1], ARGV[4])
return revision
