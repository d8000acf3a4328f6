-- uses: dead_index consumers
-- Where dead letters stand after a place, the latest first for each consumer. Reads {holdfast}:channels,
-- {holdfast}:consumers:CHANNEL, {holdfast}:dead:REF or {holdfast}:cluster:REF:FINGERPRINT.
-- ARGV: channel or '*', consumer or '*', '=' and a fingerprint or '', how many; the place: time, REF and id. At
-- one time a lower REF stands before a higher one. Returns how many were asked for of each consumer, fewer
-- where there are many, then for each REF, flat ids and times.
local MOST = 5000
local channel, name, cluster, size, time, last, id = unpack(ARGV)
local refs = numbers(channel, name)
local most = math.min(tonumber(size), math.floor(MOST / math.max(#refs, 1))) + 2
local answer = {most}
for _, ref in ipairs(refs) do
  local set = cluster == '' and key.dead(ref) or key.cluster(ref, string.sub(cluster, 2))
  local behind = tonumber(ref) < tonumber(last) and '' or '~'
  local page = page_after(set, time, ref == last and id or behind, most)
  if #page > 0 then answer[#answer + 1] = {ref, page} end
end
return answer
