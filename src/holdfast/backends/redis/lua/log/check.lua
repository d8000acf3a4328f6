-- uses: append
-- Whether a batch that comes in several parts may be appended. It runs in one transaction with the parts,
-- which look at its verdict: so the batch is appended whole or not at all.
-- Reads {holdfast}:event:*, {holdfast}:bounded:CHANNEL and of those consumers what publish reads; writes
-- {holdfast}:verdict:RANDOM, and what publish writes for what other clients have appended.
-- ARGV: key of the verdict, channel, then for each event id, source, content hash.
-- Returns 'ok', or what publish returns for a conflict or a full channel or consumer.
local total, ch = (#ARGV - 2) / 3, open_channel(ARGV[2])
local names, hashes, ids, first_of, conflicts, fresh = {}, {}, {}, {}, {}, false
for i = 1, total do
  ids[i], hashes[i] = ARGV[3 * i], ARGV[3 * i + 2]
  names[i] = key.event(ARGV[2], ARGV[3 * i + 1], ids[i])
end
for start = 1, total, PAGE do
  local known = redis.call('MGET', unpack(names, start, math.min(start + PAGE - 1, total)))
  for place, value in ipairs(known) do
    local i = start + place - 1
    local hash = value and string.sub(value, 1, 16)
    fresh = fresh or not hash
    -- What a foreign client appended has no hash: here it counts as the same.
    if not hash or hash == UNKNOWN then hash = first_of[names[i]] end
    if hash and hash ~= hashes[i] then conflicts[#conflicts + 1] = ids[i] end
    first_of[names[i]] = hash or hashes[i]
  end
end
local refused = #conflicts > 0 and {'conflict', unpack(conflicts, 1, math.min(#conflicts, PAGE))}
  or fresh and refusal(ch)
close_channels()
if refused then return refused end
redis.call('SET', ARGV[1], 'ok', 'PX', 60000)
return {'ok'}
