-- uses: exceptions
-- Phase one of the lifecycle: what is due, oldest first, and nothing is written. Each deadline is the score
-- of one set over all consumers, so that the cost does not depend on how many jobs wait.
-- Reads {holdfast}:due:*, {holdfast}:job:REF:ID, {holdfast}:block:REF:BASE, {holdfast}:consumer:REF,
-- {holdfast}:behind, {holdfast}:log:CHANNEL, the streams and {holdfast}:store.
-- ARGV: limit. Returns live jobs; what has to be looked after: channels with special entries that nobody has
-- taken up, and '#REF' of consumers whose first waiting event was due to be looked at; then for each due job:
-- kind, REF, id, token, attempts, abandonments, expired (0 or 1), max attempts, max abandonments, worker, max
-- runs (0: no bound), channel/consumer where the policy discards, else ''.
local HEADS_AT_ONCE = 100
local limit, care = tonumber(ARGV[1]), redis.call('SRANDMEMBER', BEHIND, 100)
local answer = {tonumber(redis.call('HGET', STORE, 'live')) or 0, care}

local function add(kind, c, ref, id, job)
  local expired = job.expires and job.expires <= NOW
  if kind == 'schedule' and expired then return end
  answer[#answer + 1] = {kind, tonumber(ref), id, job.token, job.attempts, job.abandonments, expired and 1 or 0,
    c.max_attempts, c.max_abandonments, job.worker or '', c.max_runs or 0,
    c.discard and c.channel .. '/' .. c.name or ''}
end

-- What is nobody's any more is told too: phase two removes it.
local function add_job(kind, ref, id)
  local f = redis.call('HMGET', key.job(ref, id), 'token', 'attempts', 'abandonments', 'expires', 'worker')
  add(kind, load_consumer(ref) or {max_attempts = 1, max_abandonments = 1}, ref, id, {
    token = tonumber(f[1]) or 0, attempts = tonumber(f[2]) or 0, abandonments = tonumber(f[3]) or 0,
    expires = tonumber(f[4]), worker = f[5]})
end

for _, due in ipairs(overdue(limit)) do
  local ref, id, block, at = unpack(due)
  local c = load_consumer(ref)
  if block then
    local expires = c.expires_after and peek_block(c, id).expires
    add('lease', c, ref, id, {token = block.base + at, attempts = 1, abandonments = 0, expires = expires,
      worker = block.worker})
  else
    add_job('lease', ref, id)
  end
end
for kind, set in pairs({expiry = EXPIRIES, schedule = SCHEDULES}) do
  for _, name in ipairs(redis.call('ZRANGEBYSCORE', set, '-inf', NOW, 'LIMIT', 0, limit)) do
    add_job(kind, string.match(name, '^(%d+):(.*)$'))
  end
end

-- Events that wait in the log: the first of a consumer expires first.
local function add_expired(c, left)
  local log, after = read_log(c.channel), c.cursor
  while left > 0 and id_less(after, log.noted) do
    local entries = redis.call('XRANGE', log.stream, '(' .. after, log.noted, 'COUNT', math.min(left, CHUNK))
    if #entries == 0 then return end
    for _, entry in ipairs(entries) do
      local job = not redis.call('ZSCORE', key.special(c.channel), pad(entry[1])) and peek_log(c, entry[1])
      after, left = entry[1], left - 1
      if job and job.expires > NOW then return end
      if job then add('expiry', c, c.ref, entry[1], job) end
    end
  end
end
for _, ref in ipairs(redis.call('ZRANGEBYSCORE', HEADS, '-inf', NOW, 'LIMIT', 0, HEADS_AT_ONCE)) do
  local c = load_consumer(ref)
  care[#care + 1] = '#' .. ref
  if c and c.expires_after then add_expired(c, limit) end
  if #answer > limit + 2 then break end
end
return answer
