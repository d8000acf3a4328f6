-- uses: dead_index jobs
-- The ways out of dead: a requeue, a purge and the removal of a consumer take a job from there in the same way.

local with_dead = {}

-- The consumers of a channel that have dead letters.
local function consumers_with_dead(channel)
  if not with_dead[channel] then
    with_dead[channel] = {}
    for _, ref in ipairs(redis.call('HVALS', key.consumers(channel))) do
      if redis.call('EXISTS', key.dead(ref)) == 1 then table.insert(with_dead[channel], ref) end
    end
  end
  return with_dead[channel]
end

-- The idempotency key of a dead letter stays, so that it is found by its event; once the last consumer's dead
-- letter of that event is gone, it lives for one more window.
local function release_event(c, id, source, event)
  if not source then return end
  for _, ref in ipairs(consumers_with_dead(c.channel)) do
    if ref ~= c.ref and redis.call('ZSCORE', key.dead(ref), id) then return end
  end
  redis.call('PEXPIRE', key.event(c.channel, source, event), WINDOW)
end

local function take_from_dead(c, id)
  local f = redis.call('HMGET', key.job(c.ref, id), 'ended', 'reason', 'fingerprint', 'source', 'event')
  leave_dead(c, id, tonumber(f[1]), f[2], f[3] or '')
  release_event(c, id, f[4], f[5])
end

local function purge(c, id, job)
  take_from_dead(c, id)
  change_state(c, job, 'purged')
  redis.call('HSET', key.job(c.ref, id), 'state', 'purged', 'ended', NOW)
  redis.call('HDEL', key.job(c.ref, id), 'entry', 'patch')
  redis.call('PEXPIRE', key.job(c.ref, id), HISTORY)
  list_ended(c.ref, id)
end
