-- uses: keys consumers
-- Take the time to live from keys that must not have one; another client gave it to them. Reads
-- {holdfast}:channels, {holdfast}:consumers:CHANNEL; changes no value. Job by job it would take too long.
-- Returns the names of those that had one.
local answer = {}
local function keep(...)
  for _, name in ipairs({...}) do
    if redis.call('PTTL', name) >= 0 then
      redis.call('PERSIST', name)
      answer[#answer + 1] = name
    end
  end
end

keep(STORE, CHANNELS, BEHIND, REMOVALS, LEASES, SCHEDULES, EXPIRIES, HEADS, RECORDS, PARTS)
for _, channel in ipairs(redis.call('HKEYS', CHANNELS)) do
  keep(key.stream(channel), key.log(channel), key.epochs(channel), key.chart(channel), key.cursors(channel),
    key.consumers(channel), key.special(channel), key.repeats(channel), key.bounded(channel))
end
for _, ref in ipairs(numbers(ALL, ALL)) do
  keep(key.consumer(ref), key.counts(ref), key.ready(ref), key.scheduled(ref), key.live(ref), key.dead(ref),
    key.clusters(ref), key.ahead(ref), key.blocks(ref), key.open(ref), key.ended(ref))
end
return answer
