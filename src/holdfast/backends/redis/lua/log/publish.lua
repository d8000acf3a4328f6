-- uses: append
-- Append a batch, all or none: idempotency, depth, entries and keys in one step.
-- Reads and writes the stream, {holdfast}:log:CHANNEL, {holdfast}:event:*, {holdfast}:special:CHANNEL,
-- {holdfast}:repeats:CHANNEL, {holdfast}:chart:CHANNEL, {holdfast}:behind, {holdfast}:store; reads
-- {holdfast}:verdict:RANDOM, {holdfast}:bounded:CHANNEL and of those consumers {holdfast}:consumer:REF,
-- {holdfast}:counts:REF, {holdfast}:ahead:REF; {holdfast}:wake.
-- ARGV: channel, at (µs) or '', priority, key of the verdict on the whole batch or '' where this is the
-- whole; then eight values for each event: id, source, type, '=' and its key or '', time or '', headers or
-- '', content hash, data.
-- Returns 'ok', the epoch, and for each event its entry id, or '=EPOCH ID' where it was there before; or
-- 'conflict' and ids; or 'full', and where it is a consumer's bound its name, its live jobs, its bound; or
-- 'refused' for a part of a refused batch.

local channel, at, priority, verdict = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
local args, offset = ARGV, 4
local total = (#ARGV - offset) / 8
local whole_batch = verdict == ''
if not whole_batch and redis.call('GET', verdict) ~= 'ok' then return {'refused'} end

local function event_at(i)
  local base = offset + 8 * (i - 1)
  local order_key = args[base + 4]
  return {
    id = args[base + 1], source = args[base + 2], type = args[base + 3],
    key = order_key ~= '' and string.sub(order_key, 2), time = args[base + 5], headers = args[base + 6],
    hash = args[base + 7], data = args[base + 8],
  }
end

local ch = open_channel(channel)

-- What was published before, in this batch or earlier.
local names, answers, first_of, conflicts, clashed, fresh = {}, {}, {}, {}, {}, 0
for i = 1, total do
  names[i] = key.event(channel, args[offset + 8 * i - 6], args[offset + 8 * i - 7])
end
for start = 1, total, 1000 do
  local known = redis.call('MGET', unpack(names, start, math.min(start + 999, total)))
  for place, value in ipairs(known) do
    local i = start + place - 1
    local hash, same = value and string.sub(value, 1, 16), true
    if hash == UNKNOWN then
      local event, other = event_at(i), read_entry(channel, string.match(value, ' (.*)$', 17))
      same = not other or same_content(event, other)
      -- The check of a batch in parts has no data to compare: what it let pass is appended, as theirs was.
      if not same and not whole_batch then value, same = false, true end
    elseif hash then
      same = hash == args[offset + 8 * i - 1]
    end
    if value then
      answers[i] = '=' .. string.sub(value, 17)
    elseif first_of[names[i]] then
      answers[i] = first_of[names[i]]
      same = args[offset + 8 * answers[i] - 1] == args[offset + 8 * i - 1]
    else
      first_of[names[i]], fresh = i, fresh + 1
    end
    if not same and not clashed[names[i]] then
      clashed[names[i]] = true
      conflicts[#conflicts + 1] = args[offset + 8 * i - 7]
    end
  end
end
local refused = #conflicts > 0 and {'conflict', unpack(conflicts, 1, math.min(#conflicts, 1000))}
  or whole_batch and fresh > 0 and refusal(ch)
if refused then
  close_channels()
  return refused
end
local result = {'ok', EPOCH}
for i = 1, total do
  local known = answers[i]
  if not known then
    result[i + 2] = append(ch, event_at(i), at, priority)
  elseif type(known) == 'number' then
    result[i + 2] = '=' .. EPOCH .. ' ' .. result[known + 2]
  else
    result[i + 2] = known
  end
end
close_channels()
if total > CHUNK then collectgarbage() end
return result
