-- uses: views
-- Dead letters without their events. Reads {holdfast}:consumer:REF, {holdfast}:job:REF:ID and, for one whose
-- event is not known, the stream.
-- ARGV: for each REF, id. Returns for each what leases/jobs returns, or nothing where it is not dead.
local answer = {}
for i = 1, #ARGV, 2 do answer[#answer + 1] = view_dead(load_consumer(ARGV[i]), ARGV[i + 1]) end
return answer
