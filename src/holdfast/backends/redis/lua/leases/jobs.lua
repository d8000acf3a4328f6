-- uses: views
-- Jobs as operators see them. Reads {holdfast}:due:lease, {holdfast}:event:*, {holdfast}:consumers:CHANNEL,
-- {holdfast}:consumer:REF, {holdfast}:job:REF:ID, {holdfast}:blocks:REF, {holdfast}:block:REF:BASE,
-- {holdfast}:log:CHANNEL, {holdfast}:ahead:REF and the stream.
-- ARGV: 'stuck', limit: leased jobs past their deadline, oldest first; or 'event', channel, source, event id:
-- the job of every consumer; or 'job', channel/consumer, id. Returns for each: channel, consumer, id, event id,
-- source, flat hash of the job.
local answer = {}
local function add(c, ...)
  answer[#answer + 1] = c and view(c, ...) or nil
end

if ARGV[1] == 'job' then
  add(find_consumer(ARGV[2]), ARGV[3])
elseif ARGV[1] == 'stuck' then
  for _, due in ipairs(overdue(tonumber(ARGV[2]))) do
    if string.sub(due[2], 1, 1) ~= '@' then add(load_consumer(due[1]), due[2]) end
  end
else
  local known = redis.call('GET', key.event(ARGV[2], ARGV[3], ARGV[4]))
  local id = known and string.match(known, ' (%d+%-%d+)$', 17)
  for _, ref in ipairs(id and numbers(ARGV[2], ALL) or {}) do add(load_consumer(ref), id, ARGV[3], ARGV[4]) end
end
return answer
