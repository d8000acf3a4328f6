-- uses: keys records
-- Remove a state record if it still has the expected revision. Removes the record's hash, and its name from
-- {holdfast}:records, {holdfast}:records:PART.
-- ARGV: record, the field of the revision, expected revision. Returns 1, or 0 where it was refused.
local name = key.record(ARGV[1])
local revision = tonumber(redis.call('HGET', name, ARGV[2])) or redis.call('EXISTS', name)
if revision == 0 or revision ~= tonumber(ARGV[3]) then return 0 end
redis.call('DEL', name)
set_due(ARGV[1], '')
return 1
