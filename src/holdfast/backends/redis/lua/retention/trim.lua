-- uses: milestones locks needs consumers
-- Remove the oldest entries as far as nobody needs them, and tell who needs the oldest of those that had to
-- stay. The check and the removal are one script: nothing can be needed in between.
-- Reads {holdfast}:lock:NAME, {holdfast}:consumers:CHANNEL, {holdfast}:consumer:REF, {holdfast}:live:REF,
-- {holdfast}:open:REF, {holdfast}:block:REF:BASE, {holdfast}:cursors:CHANNEL, {holdfast}:epochs:CHANNEL and
-- the stream's groups; writes the stream, {holdfast}:log:CHANNEL, {holdfast}:special:CHANNEL,
-- {holdfast}:repeats:CHANNEL, {holdfast}:chart:CHANNEL.
-- ARGV: channel, before (µs), limit, lock, token, how many names to ignore, these, how many foreign groups,
-- these, then REF:ID of jobs that are taken as ended. Without a token nothing is removed.
-- Returns removed, more (0 or 1), who holds the rest or '', "EPOCH ID" of the last entry that it does not
-- need or ''; and without a token the length of the stream, and "EPOCH ID" of the last entry that would go or
-- ''.

local channel, before, limit = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local stream, ignored, groups, ended = key.stream(channel), {}, {}, {}
local last_ignored = 6 + tonumber(ARGV[6])
for i = 7, last_ignored do ignored[ARGV[i]] = true end
local last_group = last_ignored + 1 + tonumber(ARGV[last_ignored + 1])
for i = last_ignored + 2, last_group do groups[#groups + 1] = ARGV[i] end
for i = last_group + 1, #ARGV do ended[ARGV[i]] = true end
local judged = ARGV[5] == ''
if not judged then
  fence(ARGV[4], ARGV[5])
  -- Another client may have given it a time to live; and after a first write the server refuses none for lack
  -- of memory.
  redis.call('PERSIST', stream)
end
local log = look(channel)
if not log.last then return {0, 0, '', '', 0, ''} end

-- The first entry that is not old enough, or false; and whether the search ended at its limit instead. An id is
-- its time of publishing within a millisecond or two, or later where the server's clock had been ahead.
local function first_young()
  local from, seen, size = whole(math.max(0, math.floor(before / 1000) - 2)) .. '-0', 0, 1
  while true do
    local entries = redis.call('XRANGE', stream, from, '+', 'COUNT', size)
    for _, entry in ipairs(entries) do
      if published_at(entry[1], fields_of(entry)) >= before then return entry[1], false end
    end
    if #entries < size then return false, false end
    local last = entries[size][1]
    seen = seen + size
    if seen > limit then return last, true end
    from, size = '(' .. last, math.min(2 * size, CHUNK)
  end
end

-- Remove up to `limit` entries below `stop`; returns how many, the last one, and whether the limit cut it.
-- Whole nodes of the stream go first, which costs little; then, one by one, what is left of the last node.
local function remove_below(stop)
  if stop == EVERYTHING then return 0, nil, false end
  local last = redis.call('XREVRANGE', stream, '(' .. stop, '-', 'COUNT', 1)[1]
  if not last then return 0, nil, false end
  if judged then return 0, last[1], false end
  local removed = 0
  if limit > 1 then removed = redis.call('XTRIM', stream, 'MINID', '~', stop, 'LIMIT', limit - 1) end
  local left = limit - removed
  local rest = redis.call('XRANGE', stream, '-', '(' .. stop, 'COUNT', left + 1)
  if #rest <= left then return removed + redis.call('XTRIM', stream, 'MINID', stop), last[1], false end
  return removed + redis.call('XTRIM', stream, 'MINID', rest[left + 1][1]), rest[left][1], true
end

local young, cut = first_young()
local needed, holder = oldest_need(channel, ignored, groups, ended)
local stop = young
if needed and (not young or id_less(needed, young)) then stop, cut = needed, false end
local removed, last, more = remove_below(stop or '18446744073709551615-18446744073709551615')
if removed > 0 then
  redis.call('HSET', key.log(channel), 'trimmed', last)
  redis.call('HINCRBY', key.log(channel), 'removed', removed)
  forget_milestones(channel, last)
  for _, set in ipairs({key.special(channel), key.repeats(channel)}) do
    redis.call('ZREMRANGEBYLEX', set, '-', '[' .. pad(last))
  end
end
local goes = judged and last and epoch_of(channel, last) .. ' ' .. last or ''
local held, spare = needed and first_entry(stream, needed), ''
if not held or (young and not id_less(held, young)) then
  holder = ''
elseif needed ~= EVERYTHING then
  local before_it = redis.call('XREVRANGE', stream, '(' .. needed, '-', 'COUNT', 1)[1]
  local id = before_it and before_it[1] or last or log.trimmed
  if id then spare = epoch_of(channel, id) .. ' ' .. id end
end
return {removed, (more or cut) and 1 or 0, holder, spare, log.length, goes}
