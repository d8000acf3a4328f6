-- uses: locks
-- Compare the sizes of some of a consumer's clusters with their orders by time of death. Reads
-- {holdfast}:lock:NAME, {holdfast}:cluster:REF:FINGERPRINT; reads and to repair writes {holdfast}:clusters:REF.
-- ARGV: REF, cursor, how many, 1 to repair or 0, lock, token. Returns the next cursor, 0 at the end, then for
-- each whose size was wrong fingerprint, counted, found.
fence(ARGV[5], ARGV[6])
local clusters, repair = key.clusters(ARGV[1]), ARGV[4] == '1'
local page = redis.call('ZSCAN', clusters, ARGV[2], 'COUNT', ARGV[3])
local answer = {page[1]}
for i = 1, #page[2], 2 do
  local fingerprint, counted = page[2][i], tonumber(page[2][i + 1])
  local found = redis.call('ZCARD', key.cluster(ARGV[1], fingerprint))
  if found ~= counted then
    answer[#answer + 1] = {fingerprint, counted, found}
    if repair and found > 0 then redis.call('ZADD', clusters, found, fingerprint) end
    if repair and found == 0 then redis.call('ZREM', clusters, fingerprint) end
  end
end
return answer
