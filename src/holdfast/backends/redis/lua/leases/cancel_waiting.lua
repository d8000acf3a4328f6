-- uses: keys clock ids batch consumers jobs log
-- scheduled or ready → cancelled, for some jobs of one consumer, in the order of the log; those that came back from
-- the dead after it was trimmed go last. A page of what nobody has turned into jobs yet is turned first.
-- Reads {holdfast}:live:REF, the stream; writes {holdfast}:job:REF:ID, {holdfast}:due:*, {holdfast}:ready:REF,
-- {holdfast}:scheduled:REF, {holdfast}:lane:REF:KEY, {holdfast}:live:REF, {holdfast}:counts:REF, and what publish
-- writes for new jobs.
-- ARGV: channel/consumer, how many live jobs to pass over, how many to look at, limit. Returns how many were
-- cancelled, how many others were met, and whether there is nothing after them (0 or 1).
redis.call('PERSIST', STORE) -- after a first write the server refuses none for lack of memory
local c = find_consumer(ARGV[1])
if not c then return redis.error_reply('HFNOTFOUND') end
local first, most, limit = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local _, level = catch_up(c, PAGE)
commit()
local cancelled, met = 0, 0

local function cancel(id)
  local job = cancelled < limit and read_job(c.ref, id)
  if job and (job.state == 'scheduled' or job.state == 'ready') then
    displace(c, id, job)
    end_job(c, id, job, 'cancelled')
    cancelled = cancelled + 1
  else
    met = met + 1
  end
end

local ids = redis.call('ZRANGE', key.live(c.ref), first, first + most - 1)
for _, id in ipairs(ids) do cancel(id) end
if #ids < most and cancelled == 0 then
  for _, name in ipairs(redis.call('ZRANGE', key.ready(c.ref), 0, most - 1)) do cancel(unrank(name)) end
  for _, id in ipairs(redis.call('ZRANGE', key.scheduled(c.ref), 0, most - 1)) do cancel(id) end
end
commit()
return {cancelled, met, level and #ids < most and 1 or 0}
