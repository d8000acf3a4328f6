-- uses: ids batch consumers
-- Blocks: a lease of many jobs in one record. A consumer's tokens come in blocks of SIZE: the member at place
-- i, from 0 on, has the token BASE + i, so that a token names its block and its place there. Successive
-- blocks cover disjoint parts of the log, one after the other, so that the block of an id is found by its
-- first id.
--
-- A block has `n` members with these `ids`; `left` of them are leased until `lease` by `worker` since
-- `claimed`. `states` has a character for each member: 1 leased, 0 done, x taken out, which then is a job of
-- its own. Without it all are alike: leased, or done once none is left. `times` says when members were done,
-- as "0-3,7.MICROSECONDS since claimed;". With an `outcome`, all of them ended so without ever being leased.
-- A block stays, as history, for as long as ended jobs do.
--
-- `ids` are runs: "=MS-SEQ" or how many milliseconds after the run before, "-SEQ" where that is not 0, and
-- "*N" for N entries with successive sequences. A batch is one run, and an event on its own takes some four
-- bytes.

local SIZE = 512
local blocks, changed = {}, {}

local function encode_ids(ids)
  local parts, i, last = {}, 1, nil
  while i <= #ids do
    local ms, seq = string.match(ids[i], '^(%d+)%-(%d+)$')
    local run, small, text = 1, #ms < 14 and #seq < 14, '=' .. ids[i] -- up to there numbers print as they are
    if small and last then text = tonumber(ms) - last .. (seq ~= '0' and '-' .. seq or '') end
    last = tonumber(ms)
    if small then
      local number, prefix = tonumber(seq), ms .. '-'
      while ids[i + run] == prefix .. number + run do run = run + 1 end
    end
    parts[#parts + 1] = run > 1 and text .. '*' .. run or text
    i = i + run
  end
  return table.concat(parts, ' ')
end

local function decode_ids(text)
  local ids, last = {}, 0
  for mark, run in string.gmatch(text, '([^ %*]+)%*?(%d*)') do
    local ms, seq = string.match(mark, '^=(%d+)%-(%d+)$')
    if not ms then
      local by
      by, seq = string.match(mark, '^(%d+)%-?(%d*)$')
      ms = last + tonumber(by) .. ''
      if seq == '' then seq = '0' end
    end
    last = tonumber(ms)
    ids[#ids + 1] = ms .. '-' .. seq
    local prefix, number, many = ms .. '-', tonumber(seq), #ids
    for more = 1, (tonumber(run) or 1) - 1 do ids[many + more] = prefix .. number + more end
  end
  return ids
end

local function load_block(ref, base)
  local name = key.block(ref, whole(base))
  if blocks[name] ~= nil then return blocks[name] end
  local f = redis.call('HMGET', name, 'n', 'ids', 'left', 'claimed', 'lease', 'worker', 'states', 'times', 'outcome')
  blocks[name] = f[1] and {
    ref = ref, base = base, name = name, n = tonumber(f[1]), text = f[2], left = tonumber(f[3]),
    claimed = tonumber(f[4]), lease = tonumber(f[5]), worker = f[6], states = f[7], times = f[8] or '',
    outcome = f[9], marks = {}, marked = 0,
  }
  return blocks[name]
end

local function ids_of(block)
  block.ids = block.ids or decode_ids(block.text)
  return block.ids
end

-- The state of the member at a place: 1, 0 or x.
local function member_state(block, at)
  if block.marks[at] then return block.marks[at] end
  if block.states then return string.sub(block.states, at + 1, at + 1) end
  return block.left > 0 and '1' or '0'
end

-- Where the block of an id has it, or nil.
local function find_member(ref, id)
  local name = redis.call('ZREVRANGEBYLEX', key.blocks(ref), '[' .. pad(id) .. ' ~', '-', 'LIMIT', 0, 1)[1]
  local block = name and load_block(ref, tonumber(string.match(name, ' (%d+)$')))
  for i, member in ipairs(block and ids_of(block) or {}) do
    if member == id then return block, i - 1 end
  end
end

local function index_name(block) return pad(ids_of(block)[1]) .. ' ' .. whole(block.base) end
local function lease_name(block) return block.ref .. ':@' .. whole(block.base) end

-- A member is not leased any more: done, or taken out.
local function close_member(block, at, state)
  block.marks[at], block.marked = state, block.marked + 1
  changed[block.name] = block
end

local function close_all(block)
  for at = 0, block.n - 1 do block.marks[at] = '0' end
  block.marked = block.n
  changed[block.name] = block
end

-- The places that were done now, as ranges, and whether any was taken out.
local function done_ranges(block)
  local places, ranges, i = {}, {}, 1
  for at, state in pairs(block.marks) do
    if state == '0' then places[#places + 1] = at end
  end
  table.sort(places)
  while i <= #places do
    local first = places[i]
    while places[i + 1] == places[i] + 1 do i = i + 1 end
    ranges[#ranges + 1] = first == places[i] and first or first .. '-' .. places[i]
    i = i + 1
  end
  return table.concat(ranges, ',')
end

local function write_block(block)
  local states = {}
  for at = 0, block.n - 1 do states[at + 1] = member_state(block, at) end
  block.states = table.concat(states)
  block.left = block.left - block.marked
  local ranges = done_ranges(block)
  if ranges ~= '' then block.times = block.times .. ranges .. '.' .. whole(NOW - block.claimed) .. ';' end
  block.marks, block.marked = {}, 0
  if block.left > 0 then
    redis.call('HSET', block.name, 'left', block.left, 'states', block.states, 'times', block.times)
    return
  end
  defer('ZREM', LEASES, lease_name(block))
  defer('ZREM', key.open(block.ref), index_name(block))
  if not string.find(block.states, '0', 1, true) then
    redis.call('DEL', block.name)
    defer('ZREM', key.blocks(block.ref), index_name(block))
    return
  end
  redis.call('HSET', block.name, 'left', 0, 'times', block.times)
  redis.call('HDEL', block.name, 'lease')
  if string.find(block.states, 'x', 1, true) then
    redis.call('HSET', block.name, 'states', block.states)
  else
    block.states = nil
    redis.call('HDEL', block.name, 'states')
  end
  redis.call('PEXPIRE', block.name, HISTORY)
end

flushers[#flushers + 1] = function()
  for _, block in pairs(changed) do write_block(block) end
  changed = {}
end

-- Those that have expired leave the index, oldest first, a few with each new one.
local function forget_blocks(ref)
  for _, name in ipairs(redis.call('ZRANGE', key.blocks(ref), 0, 2)) do
    if redis.call('EXISTS', key.block(ref, string.match(name, ' (%d+)$'))) == 1 then return end
    redis.call('ZREM', key.blocks(ref), name)
  end
end

-- A new block of up to SIZE entries in log order: leased until `deadline`, or ended with an outcome. Returns
-- the token of its first member.
local function make_block(c, ids, worker, deadline, outcome)
  c.base = math.max((c.base or 0) + SIZE, math.ceil(TOKENS / SIZE) * SIZE)
  redis.call('HSET', key.consumer(c.ref), 'base', whole(c.base))
  local name = key.block(c.ref, whole(c.base))
  local block = {ref = c.ref, base = c.base, ids = ids}
  forget_blocks(c.ref)
  defer('ZADD', key.blocks(c.ref), 0, index_name(block))
  count(c.ref, 'waiting', -#ids)
  count(c.ref, outcome or 'leased', #ids)
  if outcome then
    redis.call('HSET', name, 'n', #ids, 'ids', encode_ids(ids), 'left', 0, 'claimed', NOW, 'outcome', outcome)
    redis.call('PEXPIRE', name, HISTORY)
  else
    redis.call('HSET', name, 'n', #ids, 'ids', encode_ids(ids), 'left', #ids, 'claimed', NOW, 'worker', worker,
      'lease', deadline)
    defer('ZADD', key.open(c.ref), 0, index_name(block))
    defer('ZADD', LEASES, deadline, lease_name(block))
  end
  return c.base
end

-- When a member that was done was done.
local function done_at(block, at)
  for ranges, delta in string.gmatch(block.times, '([^%.;]+)%.(%d+);') do
    for range in string.gmatch(ranges, '[^,]+') do
      local first, last = string.match(range, '^(%d+)%-?(%d*)$')
      if at >= tonumber(first) and at <= tonumber(last ~= '' and last or first) then
        return block.claimed + tonumber(delta)
      end
    end
  end
  return block.claimed
end

-- The block that holds a job under a token, and its place there.
local function leased_member(c, id, token)
  local at = token % SIZE
  local block = c.base and load_block(c.ref, token - at)
  if block and ids_of(block)[at + 1] == id and member_state(block, at) == '1' then return block, at end
end

-- REF and id of up to `limit` jobs whose lease has ended, and the place of those of a block, oldest first. A block
-- that is nobody's any more stands for a job, which phase two of the lifecycle removes from the leases: those of
-- a consumer whose removal goes on another day must not hide what is behind them.
local function overdue(limit)
  local found = {}
  for _, name in ipairs(redis.call('ZRANGEBYSCORE', LEASES, '-inf', NOW, 'LIMIT', 0, limit)) do
    local ref, id = string.match(name, '^(%d+):(.*)$')
    local base = tonumber(string.match(id, '^@(%d+)$'))
    local block = base and load_consumer(ref) and load_block(ref, base)
    for i, member in ipairs(block and ids_of(block) or {}) do
      if #found < limit and member_state(block, i - 1) == '1' then found[#found + 1] = {ref, member, block, i - 1} end
    end
    if not block and #found < limit then found[#found + 1] = {ref, id} end
  end
  return found
end
