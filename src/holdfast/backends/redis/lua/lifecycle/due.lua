-- uses: keys clock consumers
-- Phase one of the lifecycle: what is due, oldest first, and nothing is written. Each deadline is the score
-- of one set over all consumers, so that the cost does not depend on how many jobs wait.
-- Reads {holdfast}:due:*, {holdfast}:job:REF:ID, {holdfast}:consumer:REF, {holdfast}:behind,
-- {holdfast}:store.
-- ARGV: limit. Returns live jobs, REFs that are behind, then for each due job: kind, REF, id, token,
-- attempts, abandonments, expired (0 or 1), max attempts, max abandonments, worker, max runs (0: no bound),
-- channel/consumer where the policy discards, else ''.
local answer = {tonumber(redis.call('HGET', STORE, 'live')) or 0, redis.call('SRANDMEMBER', BEHIND, 100)}
local function add(kind, set)
  for _, name in ipairs(redis.call('ZRANGEBYSCORE', set, '-inf', NOW, 'LIMIT', 0, ARGV[1])) do
    local ref, id = string.match(name, '^(%d+):(.*)$')
    local c = load_consumer(ref) or {max_attempts = 1, max_abandonments = 1}
    local f = redis.call('HMGET', key.job(ref, id), 'token', 'attempts', 'abandonments', 'expires', 'worker')
    local expired = f[4] and tonumber(f[4]) <= NOW
    if not (kind == 'schedule' and expired) then
      answer[#answer + 1] = {kind, tonumber(ref), id, tonumber(f[1]) or 0, tonumber(f[2]) or 0,
        tonumber(f[3]) or 0, expired and 1 or 0, c.max_attempts, c.max_abandonments, f[5] or '',
        c.max_runs or 0, c.discard and c.channel .. '/' .. c.name or ''}
    end
  end
end
add('lease', LEASES)
add('expiry', EXPIRIES)
add('schedule', SCHEDULES)
return answer
