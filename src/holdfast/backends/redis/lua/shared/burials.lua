-- Leaving the dead: a requeue and a purge take a job from among them in the same way.

-- The idempotency key of a dead letter stays, so that it is found by its event; once the last consumer's dead
-- letter of that event is gone, it lives for one more window.
local function release_event(c, id)
  local event = redis.call('HMGET', key.job(c.ref, id), 'source', 'event')
  if not event[1] then return end
  for _, ref in ipairs(redis.call('HVALS', key.consumers(c.channel))) do
    if ref ~= c.ref and redis.call('HGET', key.job(ref, id), 'state') == 'dead' then return end
  end
  redis.call('PEXPIRE', key.event(c.channel, event[1], event[2]), WINDOW)
end

local function exhume(c, id, job)
  redis.call('ZREM', key.dead(c.ref), id)
  count(c.ref, 'dead:' .. job.reason, -1)
  release_event(c, id)
end
