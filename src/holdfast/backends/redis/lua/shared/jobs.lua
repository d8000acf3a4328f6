-- uses: noted
-- Jobs of their own: where one stands while it waits, and how it ends. `c` is its consumer. A job of an
-- ordered consumer has a key and a place in that key's lane; only the head of a lane is in the ready set, so
-- that a long lane costs the others nothing.

local function read_job(ref, id)
  local f = redis.call('HMGET', key.job(ref, id), 'state', 'token', 'attempts', 'abandonments', 'priority',
    'due', 'expires', 'lease', 'key', 'patch')
  return f[1] and {
    state = f[1], token = tonumber(f[2]) or 0, attempts = tonumber(f[3]) or 0,
    abandonments = tonumber(f[4]) or 0, priority = tonumber(f[5]) or 0, due = tonumber(f[6]),
    expires = tonumber(f[7]), lease = tonumber(f[8]), key = f[9], patch = f[10],
  }
end

local function is_head(c, id, order_key)
  return redis.call('ZRANGE', key.lane(c.ref, order_key), 0, 0)[1] == pad(id)
end

-- Put a waiting job into the sets that its state asks for.
local function place(c, id, job)
  local name = c.ref .. ':' .. id
  if job.expires then defer('ZADD', EXPIRIES, job.expires, name) end
  if job.state == 'scheduled' then
    defer('ZADD', SCHEDULES, job.due, name)
    defer('ZADD', key.scheduled(c.ref), job.due, id)
  elseif not job.key or is_head(c, id, job.key) then
    defer('ZADD', key.ready(c.ref), -job.priority, rank(job.due, id))
  end
end

-- Take a job out of them, or out of the leases.
local function displace(c, id, job)
  local name = c.ref .. ':' .. id
  if job.state == 'leased' then
    defer('ZREM', LEASES, name)
    return
  end
  if job.expires then defer('ZREM', EXPIRIES, name) end
  if job.state == 'scheduled' then
    defer('ZREM', SCHEDULES, name)
    defer('ZREM', key.scheduled(c.ref), id)
  else
    defer('ZREM', key.ready(c.ref), rank(job.due, id))
  end
end

-- A job that returns from the dead may stand before the present head, which then waits behind it.
local function join_lane(c, id, order_key)
  local lane = key.lane(c.ref, order_key)
  redis.call('ZADD', lane, 0, pad(id))
  local first = redis.call('ZRANGE', lane, 0, 1)
  if first[1] ~= pad(id) or not first[2] then return end
  local behind = unpad(first[2])
  local job = read_job(c.ref, behind)
  if job and job.state == 'ready' then defer('ZREM', key.ready(c.ref), rank(job.due, behind)) end
end

-- When the head leaves, the next one may be claimed.
local function leave_lane(c, id, order_key)
  local lane = key.lane(c.ref, order_key)
  local first = redis.call('ZRANGE', lane, 0, 1)
  redis.call('ZREM', lane, pad(id))
  if first[1] ~= pad(id) or not first[2] then return end
  local next_id = unpad(first[2])
  local job = read_job(c.ref, next_id)
  if job and job.state == 'ready' then
    defer('ZADD', key.ready(c.ref), -job.priority, rank(job.due, next_id))
  end
end

-- From here until its end the job needs its entry in the log.
local function hold_entry(c, id) defer('ZADD', key.live(c.ref), string.match(id, '^%d+'), id) end

-- When a job of an entry could first have run: what is older than its consumer has its whole time to wait from
-- the consumer's creation on.
local function base_of(c, id, fields) return math.max(published_at(id, fields), c.created) end

-- The job of an entry that nobody has taken up: when it is due, and what else follows from the entry.
local function job_of(c, id, fields)
  local base, at, priority = base_of(c, id, fields), special_of(id, fields)
  local due = math.max(at or base, base)
  return {state = at and 'scheduled' or 'ready', token = 0, attempts = 0, abandonments = 0, priority = priority,
    due = due, created = base, expires = c.expires_after and later(due, c.expires_after),
    key = c.ordered and fields.key}
end

local function write_job(c, id, job)
  local fields = {'state', job.state, 'due', job.due, 'created', job.created, 'epoch', epoch_of(c.channel, id)}
  for _, name in ipairs({'priority', 'token', 'attempts'}) do
    if job[name] ~= 0 then fields[#fields + 1], fields[#fields + 2] = name, whole(job[name]) end
  end
  for _, name in ipairs({'expires', 'lease', 'worker', 'key'}) do
    if job[name] then fields[#fields + 1], fields[#fields + 2] = name, job[name] end
  end
  redis.call('HSET', key.job(c.ref, id), unpack(fields))
  hold_entry(c, id)
end

-- A waiting entry becomes a job of its own.
local function create_job(c, id, fields)
  local job = job_of(c, id, fields)
  if job.key then redis.call('ZADD', key.lane(c.ref, job.key), 0, pad(id)) end
  write_job(c, id, job)
  place(c, id, job)
  count(c.ref, 'waiting', -1)
  count(c.ref, job.state, 1)
  return job
end

-- A record that will expire is listed until then, so that it is found when its consumer is removed.
local pruned = {}
local function list_ended(ref, id)
  if not pruned[ref] then
    pruned[ref] = true
    redis.call('ZREMRANGEBYSCORE', key.ended(ref), '-inf', whole(NOW - HISTORY * 1000))
  end
  defer('ZADD', key.ended(ref), NOW, id)
end

-- The end of a job that leaves only its history.
local function end_job(c, id, job, outcome)
  local name = key.job(c.ref, id)
  redis.call('HSET', name, 'state', outcome, 'ended', NOW)
  redis.call('PEXPIRE', name, HISTORY)
  if job.patch then redis.call('HDEL', name, 'patch') end
  defer('ZREM', key.live(c.ref), id)
  list_ended(c.ref, id)
  if job.key then leave_lane(c, id, job.key) end
  count(c.ref, job.state, -1)
  count(c.ref, outcome, 1)
end

local function change_state(c, job, state)
  count(c.ref, job.state, -1)
  count(c.ref, state, 1)
  job.state = state
end

-- Note an attempt's error, JSON from the client, with its time, behind those of the attempts before. They
-- stand in pages: a job that is tried a thousand times would otherwise write all of them again each time. Of
-- very many pages the first and the latest are kept.
local ERRORS, PAGES = 16384, 64
local function note_error(ref, id, failure)
  local name = key.job(ref, id)
  local page = redis.call('HGET', name, 'pages') or ''
  local past = redis.call('HGET', name, 'errors' .. page)
  if past and #past > ERRORS then
    page, past = redis.call('HINCRBY', name, 'pages', 1), nil
    if page >= PAGES then redis.call('HDEL', name, 'errors' .. page - PAGES + 1) end
  end
  redis.call('HSET', name, 'errors' .. page,
    (past and past .. ',' or '') .. string.sub(failure, 1, -2) .. ',"at":' .. NOW_TEXT .. '}')
end
