-- uses: append dead_index jobs
-- Dead letters: the job's record, its count and its copy in the dead-letter channel move in one script.

-- RFC 3339, which readers of the log expect.
local function iso(time)
  local seconds = math.floor(time / 1000000)
  local days = math.floor(seconds / 86400)
  local second = seconds - days * 86400
  -- The calendar from a day count: years begin in March, so that a leap day is the last of its year.
  local shifted = days + 719468
  local era = math.floor(shifted / 146097)
  local day = shifted - era * 146097
  local leaps = math.floor(day / 1460) - math.floor(day / 36524) + math.floor(day / 146096)
  local year = math.floor((day - leaps) / 365)
  day = day - (365 * year + math.floor(year / 4) - math.floor(year / 100))
  local month = math.floor((5 * day + 2) / 153)
  day = day - math.floor((153 * month + 2) / 5) + 1
  month = month < 10 and month + 3 or month - 9
  year = year + era * 400 + (month <= 2 and 1 or 0)
  return string.format('%04d-%02d-%02dT%02d:%02d:%02d.%06dZ', year, month, day, math.floor(second / 3600),
    math.floor(second / 60) % 60, second % 60, time - seconds * 1000000)
end

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
    headers = cjson.encode(headers), hash = UNKNOWN, data = job.patch or event.data or cjson.encode(own_fields(event)),
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
