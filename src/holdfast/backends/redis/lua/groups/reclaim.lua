-- uses: locks groups
-- Hand the pending entries of members that are gone over to the one that was seen last. Reads
-- {holdfast}:lock:NAME; changes the stream's group.
-- ARGV: channel, group, alive (ms), limit, lock, token. Returns how many entries were handed over.
fence(ARGV[5], ARGV[6])
local stream, group, alive, left = key.stream(ARGV[1]), ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local members, handed = members_of(stream, group), 0
local heir = members[1]
if not heir or heir.idle > alive then return 0 end
for _, member in ipairs(members) do
  if member.idle > alive and member.pending > 0 and handed < left then
    local ids = {}
    for i, entry in ipairs(redis.call('XPENDING', stream, group, '-', '+', left - handed, member.name)) do
      ids[i] = entry[1]
    end
    -- Not a delivery: the heir reads them among its own pending entries, and counts for itself.
    for start = 1, #ids, 1000 do
      local some = {unpack(ids, start, math.min(start + 999, #ids))}
      some[#some + 1] = 'JUSTID'
      handed = handed + #redis.call('XCLAIM', stream, group, heir.name, 0, unpack(some))
    end
  end
end
return handed
