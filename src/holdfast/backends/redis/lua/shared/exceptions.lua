-- uses: frontier blocks
-- Exceptions: a job becomes a record of its own when something happens to it that does not happen to its
-- neighbours: it is taken out of its block, or out of the log ahead of the frontier.

-- A waiting event as a job; nil where the id has none, or is behind the frontier.
local function peek_log(c, id)
  local log = read_log(c.channel)
  if id_less(log.noted, id) or redis.call('ZSCORE', key.repeats(c.channel), pad(id)) then return nil end
  local special = not c.ordered and redis.call('ZSCORE', key.special(c.channel), pad(id))
  if not id_less(special and c.special or c.cursor, id) or redis.call('ZSCORE', key.ahead(c.ref), pad(id)) then
    return nil
  end
  local fields = read_entry(c.channel, id)
  if not fields then return nil end
  local job = job_of(c, id, fields)
  job.waits, job.special, job.fields = true, special, fields
  return job
end

local function peek_block(c, id)
  local block, at = find_member(c.ref, id)
  local state = block and member_state(block, at)
  if not block or state == 'x' then return nil end
  local job = job_of(c, id, read_entry(c.channel, id) or {})
  job.block, job.at, job.state, job.key = block, at, state == '1' and 'leased' or block.outcome or 'done', false
  if block.outcome then
    job.ended = block.claimed
    return job
  end
  job.token, job.attempts, job.worker = block.base + at, 1, block.worker
  if state == '1' then job.lease = block.lease else job.ended = done_at(block, at) end
  return job
end

-- A job wherever it is; nil where there is none.
local function peek(c, id) return read_job(c.ref, id) or peek_block(c, id) or peek_log(c, id) end

-- The job that is leased under a token; nil where there is none.
local function peek_leased(c, id, token)
  local job = leased_member(c, id, token) and peek_block(c, id) or read_job(c.ref, id)
  return job and job.state == 'leased' and job.token == token and job or nil
end

local function take_out_member(c, id, job)
  close_member(job.block, job.at, 'x')
  write_job(c, id, job)
  defer('ZADD', LEASES, job.lease, c.ref .. ':' .. id)
end

-- Special entries are taken up in their order: whoever wants one by itself takes up those before it.
local function take_out_waiting(c, id, job)
  create_job(c, id, job.fields)
  local reached = false
  walk(c, read_log(c.channel), 1, function(next_id)
    reached = next_id == id
    return reached
  end)
  if not reached then redis.call('ZADD', key.ahead(c.ref), 0, pad(id)) end
end

-- Make what was found a record of its own, where it is not.
local function take_out(c, id, job)
  if job.block then take_out_member(c, id, job) end
  if job.waits then take_out_waiting(c, id, job) end
  job.block, job.waits = nil, nil
  return job
end
