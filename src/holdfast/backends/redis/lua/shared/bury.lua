-- uses: append dead_index
-- Dead letters: the job's record, its count and its copy in the dead-letter channel move in one script.

-- The event under `ID#TOKEN`, with the data that the job died with and its story in headers, as every backend
-- writes it.
local function send_copy(c, id, job, event, reason, failure)
  local headers = {}
  local readable, given = pcall(cjson.decode, event.headers or '{}')
  for name, value in pairs(readable and type(given) == 'table' and given or {}) do
    if type(name) == 'string' and type(value) == 'string' then headers[name] = value end
  end
  headers['holdfast-channel'], headers['holdfast-consumer'] = c.channel, c.name
  headers['holdfast-source'], headers['holdfast-id'] = event.source, event.id
  headers['holdfast-reason'], headers['holdfast-error'] = reason, cjson.decode(failure).error
  append(open_channel(c.dead_letter), {
    id = event.id .. '#' .. whole(job.token), source = c.channel .. '/' .. c.name,
    type = event.type or 'event', key = event.key, time = event.time or iso((published_at(id, event))),
    headers = cjson.encode(headers), hash = UNKNOWN, data = job.patch or event.data or '',
  }, nil, 0)
end

-- A dead-letter channel whose key another client has made unusable must not stop every burial: the job dies
-- without a copy, and says so.
local function try_copy(c, id, job, event, reason, failure)
  local sent, problem = pcall(send_copy, c, id, job, event, reason, failure)
  if sent then return end
  local told = 'no copy went to channel ' .. c.dead_letter .. ': '
    .. (type(problem) == 'table' and problem.err or problem)
  local note = cjson.encode({attempt = job.attempts, error = told, kind = '', fingerprint = ''})
  note_error(c.ref, id, note)
end

-- Give up on a job, live until now. `overdue`: its attempt ended without an answer, so that it is given back
-- and counts as an abandonment. Returns how many bytes its event has.
local function bury(c, id, job, reason, failure, fingerprint, overdue)
  local name = key.job(c.ref, id)
  local spent = overdue and 1 or 0
  local event, entry
  if not c.discard then event, entry = job_entry(c, id) end
  if event then
    event.source, event.id = event.source or 'default', event.id or id
    if c.dead_letter then try_copy(c, id, job, event, reason, failure) end
  end
  displace(c, id, job)
  note_error(c.ref, id, failure)
  redis.call('HSET', name, 'reason', reason, 'fingerprint', fingerprint, 'attempts', job.attempts - spent,
    'abandonments', job.abandonments + spent)
  if c.discard then
    end_job(c, id, job, 'discarded')
    return 0
  end
  redis.call('HSET', name, 'state', 'dead', 'ended', NOW)
  defer('ZREM', key.live(c.ref), id)
  if job.key then leave_lane(c, id, job.key) end
  change_state(c, job, 'dead')
  enter_dead(c, id, reason, fingerprint)
  if not event then return 0 end
  redis.call('HSET', name, 'source', event.source, 'event', event.id)
  -- A dead letter must be found by its event, however long it stays.
  redis.call('PERSIST', key.event(c.channel, event.source, event.id))
  return keep_entry(c.ref, id, entry)
end
