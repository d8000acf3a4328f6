-- uses: views
-- Clusters, each with the latest of its dead letters. Reads {holdfast}:clusters:REF,
-- {holdfast}:cluster:REF:FINGERPRINT, {holdfast}:consumer:REF, {holdfast}:job:REF:ID.
-- ARGV: for each REF, fingerprint. Returns for each fingerprint, size, what leases/jobs returns; those that are
-- gone are left out.
local answer = {}
for i = 1, #ARGV, 2 do
  local c, fingerprint = load_consumer(ARGV[i]), ARGV[i + 1]
  local latest = c and redis.call('ZREVRANGE', key.cluster(c.ref, fingerprint), 0, 0)[1]
  local row = latest and view_dead(c, latest)
  local size = row and redis.call('ZSCORE', key.clusters(c.ref), fingerprint)
  if size then answer[#answer + 1] = {fingerprint, size, row} end
end
return answer
