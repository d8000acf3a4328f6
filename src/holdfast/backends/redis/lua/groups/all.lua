-- uses: log groups
-- Foreign groups of some channels. Reads the streams' groups and {holdfast}:epochs:CHANNEL.
-- ARGV: alive (ms), channels. Returns for each group channel, name, living members, the least idle time (ms)
-- or '', pending, pending of members that are not living, "EPOCH ID" of the last
-- delivered entry or ''.
local answer, alive = {}, tonumber(ARGV[1])
for i = 2, #ARGV do
  local stream = key.stream(ARGV[i])
  local groups = redis.pcall('XINFO', 'GROUPS', stream)
  for _, flat in ipairs(groups.err and {} or groups) do
    local group, living, stale = as_table(flat), 0, 0
    local members = members_of(stream, group.name)
    for _, member in ipairs(members) do
      if member.idle <= alive then living = living + 1 else stale = stale + member.pending end
    end
    local delivered = group['last-delivered-id']
    answer[#answer + 1] = {ARGV[i], group.name, living, members[1] and members[1].idle or '', group.pending,
      stale, delivered ~= '0-0' and epoch_of(ARGV[i], delivered) .. ' ' .. delivered or ''}
  end
end
return answer
