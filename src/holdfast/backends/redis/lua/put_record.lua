-- uses: keys
-- Write a state record whole, if it still has the expected revision. Writes the record's hash and
-- {holdfast}:records.
-- ARGV: record, the field of the revision, expected revision (0: there is none), due (µs) or '', then the
-- fields by name and value. Answers the new revision, or nothing where it was refused.
local name, field = key.record(ARGV[1]), ARGV[2]
local revision = tonumber(redis.call('HGET', name, field)) or redis.call('EXISTS', name)
if revision ~= tonumber(ARGV[3]) then return false end
redis.call('DEL', name)
redis.call('HSET', name, field, revision + 1, unpack(ARGV, 5))
if ARGV[4] == '' then
  redis.call('ZREM', RECORDS, ARGV[1])
else
  redis.call('ZADD', RECORDS, ARGV[4], ARGV[1])
end
return revision + 1
