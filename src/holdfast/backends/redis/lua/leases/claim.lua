-- uses: frontier blocks
-- Lease ready jobs: by priority, then due time. Those of their own, and events straight from the log, which
-- become blocks, are merged into one order.
-- Reads the stream, {holdfast}:consumer:REF; writes {holdfast}:consumer:REF, {holdfast}:ready:REF,
-- {holdfast}:job:REF:ID, {holdfast}:block:REF:BASE, {holdfast}:blocks:REF, {holdfast}:open:REF,
-- {holdfast}:ahead:REF, {holdfast}:due:*, {holdfast}:counts:REF, {holdfast}:scheduled:REF,
-- {holdfast}:lane:REF:KEY, {holdfast}:live:REF, and what log/catch_up writes.
-- ARGV: channel/consumer, limit, worker.
-- Returns the deadline; the channel's epochs; how many events are lost that other clients removed; whether
-- another claim should follow at once (0 or 1), since there is more of the log to go through before that is
-- all; the first token and the size of each block; seven values for each usual event of a block: its entry's
-- id, id, source, type, when it was published, data, key; and a row for each other job, of its own or of a
-- block: its place among all of them from 0 on, id, attempts, abandonments, token, the fields of its entry,
-- the data that replaces its event's where it came back with other data, whether it is of a block (0 or 1):
-- one of its own can have the number that a member's token is. A job of its own has fields where it came back
-- from the dead after the log was trimmed, one of a block where they are not large: the others are fetched by
-- the caller, since a server copies them faster than a script.

redis.call('PERSIST', STORE) -- after a first write the server refuses none for lack of memory
local LARGE, MOST_BYTES = 1000000, 4000000
local c = find_consumer(ARGV[1])
if not c then return redis.error_reply('HFNOTFOUND') end
local limit, worker, deadline = tonumber(ARGV[2]), ARGV[3], whole(later(NOW, c.lease))
local epochs_of, made = redis.call('LRANGE', key.epochs(c.channel), 0, -1), {}
if c.paused then return {deadline, epochs_of, 0, 0, made, {}, {}} end

local log = note_entries(c.channel)
local _, more = take_up_special(c, log, PAGE)
commit()
local level = true
if c.ordered then
  -- Whatever is not taken up is later than what is: no more of it is needed than can be claimed now.
  local before = c.taken
  level = false
  while not level and c.taken - before < PAGE and redis.call('ZCARD', key.ready(c.ref)) < limit do
    level = take_up_jobs(c, log, math.max(limit, CHUNK))
    commit()
  end
end

local ready = redis.call('ZRANGE', key.ready(c.ref), 0, limit - 1, 'WITHSCORES')
local at, bytes, leased, ids, usual, rows, alone = 1, 0, 0, {}, {}, {}, 0

local function lease(name)
  local id = unrank(name)
  local f = redis.call('HMGET', key.job(c.ref, id), 'state', 'attempts', 'abandonments', 'token', 'expires',
    'entry', 'patch')
  defer('ZREM', key.ready(c.ref), name)
  -- What has expired only waits for the lifecycle, which finds it by its expiry.
  if f[1] ~= 'ready' or (f[5] and tonumber(f[5]) <= NOW) then return end
  local attempts, token, member = (tonumber(f[2]) or 0) + 1, next_token(f[4]), c.ref .. ':' .. id
  redis.call('HSET', key.job(c.ref, id), 'state', 'leased', 'attempts', attempts, 'token', whole(token), 'lease',
    deadline, 'worker', worker)
  defer('ZADD', LEASES, deadline, member)
  if f[5] then defer('ZREM', EXPIRIES, member) end
  rows[#rows + 1] = {leased, id, attempts, tonumber(f[3]) or 0, token, f[6] and kept_entry(c.ref, id)[2] or false,
    f[7] or false, 0}
  leased, alone, bytes = leased + 1, alone + 1, bytes + #(f[6] or '') + #(f[7] or '')
end

-- Lease the jobs of their own that come before an event of this time; without one, whatever is left.
local function lease_before(due, id)
  while at <= #ready and leased < limit and bytes < MOST_BYTES do
    local name, score = ready[at], tonumber(ready[at + 1])
    local its_due = tonumber(string.sub(name, 1, 16))
    if due and (score > 0 or (score == 0 and (its_due > due or (its_due == due and id_less(id, unrank(name)))))) then
      return
    end
    lease(name)
    at = at + 2
  end
end

-- An event of ours with or without a key, and with nothing else that not every event has.
local function is_usual(flat)
  return flat[1] == 'id' and flat[3] == 'source' and flat[5] == 'type' and flat[7] == 'published'
    and flat[9] == 'data' and (#flat == 10 or (#flat == 12 and flat[11] == 'key'))
end

local function lease_event(id, flat, weight)
  local fields = (at <= #ready or c.expires_after) and fields_of({id, flat})
  local due = fields and base_of(c, id, fields)
  if due then lease_before(due, id) end
  if leased >= limit or bytes >= MOST_BYTES then return false end
  if c.expires_after and due + c.expires_after <= NOW then
    create_job(c, id, fields) -- which the lifecycle buries
    return true
  end
  ids[#ids + 1], leased = id, leased + 1
  local fits = bytes + weight < LARGE
  if fits then bytes = bytes + weight end
  if fits and is_usual(flat) then
    local n = #usual
    usual[n + 1], usual[n + 2], usual[n + 3], usual[n + 4] = id, flat[2], flat[4], flat[6]
    usual[n + 5], usual[n + 6], usual[n + 7] = flat[8], flat[10], flat[12] or false
  else
    rows[#rows + 1] = {leased - 1, id, 1, 0, #ids, fits and flat or false, false, 1}
  end
  return true
end

local cut = false
if not c.ordered then level, cut = walk(c, log, limit, lease_event) end
if not cut then lease_before() end
for first = 1, #ids, SIZE do
  local members = {}
  for i = first, math.min(first + SIZE - 1, #ids) do members[#members + 1] = ids[i] end
  made[#made + 1], made[#made + 2] = make_block(c, members, worker, deadline), #members
end
for _, row in ipairs(rows) do
  if row[8] == 1 then row[5] = made[2 * math.ceil(row[5] / SIZE) - 1] + (row[5] - 1) % SIZE end
end
count(c.ref, 'ready', -alone)
count(c.ref, 'leased', alone)
commit()
local unseen = leased == 0 and (more or not level or not log.level)
local missing = (cut or c.ordered) and leased < limit and not level and bytes < MOST_BYTES
local again = (unseen or missing) and 1 or 0
return {deadline, epochs_of, c.lost or 0, again, made, usual, rows}
