-- uses: exceptions
-- Jobs as operators see them, without their events, which can be large.

local SHOWN = {'state', 'source', 'event', 'epoch', 'attempts', 'abandonments', 'token', 'priority', 'created',
  'due', 'lease', 'ended', 'worker', 'reason', 'by', 'errors', 'fingerprint'}

local function all_errors(name, first, pages)
  local all = {first}
  for page = 1, pages do
    local kept = redis.call('HGET', name, 'errors' .. page)
    if kept then all[#all + 1] = kept end
  end
  return table.concat(all, ',')
end

-- Channel, consumer, id, event id, source, flat hash; and the state. Nil where there is no such job. Who is
-- asked for an event's jobs knows source and event id, and so does a dead letter; otherwise its entry tells, ''
-- once that is gone.
local function view(c, id, source, event)
  local name, flat = key.job(c.ref, id), {}
  local values = redis.call('HMGET', name, 'pages', unpack(SHOWN))
  local pages = tonumber(table.remove(values, 1))
  local job = not values[1] and peek(c, id)
  for i, field in ipairs(job and SHOWN or {}) do
    values[i] = type(job[field]) == 'number' and whole(job[field]) or job[field] or false
  end
  if job then values[4] = epoch_of(c.channel, id) end
  if not values[1] then return nil end
  for i, field in ipairs(SHOWN) do
    if values[i] then
      flat[#flat + 1] = field
      flat[#flat + 1] = field == 'errors' and pages and all_errors(name, values[i], pages) or values[i]
    end
  end
  if not source then source, event = values[2], values[3] end
  if not source then
    local entry = job_entry(c, id)
    source, event = entry and (entry.source or 'default') or '', entry and (entry.id or id) or ''
  end
  return {c.channel, c.name, id, event, source, flat}, values[1]
end

-- The same of a dead letter; false for any other job.
local function view_dead(c, id)
  if not c then return false end
  local row, state = view(c, id)
  return state == 'dead' and row
end
