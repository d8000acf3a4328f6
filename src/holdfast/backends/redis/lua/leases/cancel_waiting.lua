-- uses: exceptions
-- scheduled or ready → cancelled, for some jobs of one consumer: first those of their own, then what waits in
-- the log, which becomes blocks that have ended.
-- Reads {holdfast}:live:REF, the stream; writes {holdfast}:job:REF:ID, {holdfast}:block:REF:BASE,
-- {holdfast}:blocks:REF, {holdfast}:consumer:REF, {holdfast}:ahead:REF, {holdfast}:ended:REF,
-- {holdfast}:due:*, {holdfast}:ready:REF, {holdfast}:scheduled:REF, {holdfast}:lane:REF:KEY,
-- {holdfast}:live:REF, {holdfast}:counts:REF, and what log/catch_up writes.
-- ARGV: channel/consumer, how many live jobs to pass over, how many to look at, limit. Returns how many were
-- cancelled, how many others were met, and whether there is nothing after them (0 or 1).
redis.call('PERSIST', STORE) -- after a first write the server refuses none for lack of memory
local c = find_consumer(ARGV[1])
if not c then return redis.error_reply('HFNOTFOUND') end
local first, most, limit = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local log = note_entries(c.channel)
local more = false
if not c.ordered then
  local _
  _, more = take_up_special(c, log, PAGE)
end
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
local level = false
if #ids < most and cancelled < math.min(limit, most) then
  local members = {}
  level = walk(c, log, math.min(limit, most) - cancelled, function(id) members[#members + 1] = id end)
  for start = 1, #members, SIZE do
    make_block(c, {unpack(members, start, math.min(start + SIZE - 1, #members))}, nil, nil, 'cancelled')
  end
  cancelled = cancelled + #members
end
commit()
return {cancelled, met, level and not more and log.level and 1 or 0}
