-- uses: purge
-- Revival: a job goes back to ready at the tail, with fresh budgets and its whole time to wait. The token
-- rises, so that a lease that still runs is lost.

local function leave_dead_for_ready(c, id, job)
  take_from_dead(c, id)
  -- Once it was trimmed, the job goes on with what it kept; until then it holds its entry in the log again.
  if read_entry(c.channel, id) then
    redis.call('HDEL', key.job(c.ref, id), 'entry')
    hold_entry(c, id)
  else
    defer('ZADD', key.live(c.ref), '+inf', id)
  end
  if job.key then join_lane(c, id, job.key) end
end

local function revive(c, id, job)
  local name = key.job(c.ref, id)
  if job.state == 'dead' then leave_dead_for_ready(c, id, job) else displace(c, id, job) end
  change_state(c, job, 'ready')
  job.due, job.expires = NOW, c.expires_after and later(NOW, c.expires_after)
  redis.call('HSET', name, 'state', 'ready', 'due', NOW, 'token', next_token(job.token), 'attempts', 0,
    'abandonments', 0)
  redis.call('HDEL', name, 'lease', 'worker', 'reason', 'fingerprint', 'ended', 'source', 'event', 'expires')
  if job.expires then redis.call('HSET', name, 'expires', job.expires) end
  place(c, id, job)
end
