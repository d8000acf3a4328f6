-- uses: blocks log groups
-- Needs: the oldest entry of a channel that somebody still needs. What is not known counts as everything.

local EVERYTHING = '0-0'

local function first_entry(stream, from)
  local entry = redis.call('XRANGE', stream, from, '+', 'COUNT', 1)[1]
  return entry and entry[1]
end

-- The oldest of a consumer's live jobs that need their entry, but for those that are taken as ended. Within one
-- millisecond the set is in the order of text, not of the log.
local function oldest_live(ref, ended)
  local oldest, score, at, size = nil, nil, 0, 1
  while not oldest do
    local some = redis.call('ZRANGEBYSCORE', key.live(ref), '-inf', '(+inf', 'WITHSCORES', 'LIMIT', at, size)
    for i = 1, #some, 2 do
      if not oldest and not ended[ref .. ':' .. some[i]] then oldest, score = some[i], some[i + 1] end
    end
    if #some < 2 * size then break end
    at, size = at + size, math.min(2 * size, CHUNK)
  end
  for _, id in ipairs(oldest and redis.call('ZRANGEBYSCORE', key.live(ref), score, score) or {}) do
    if id_less(id, oldest) and not ended[ref .. ':' .. id] then oldest = id end
  end
  return oldest
end

-- The oldest member of its blocks that is leased.
local function oldest_leased(ref, ended)
  local at = 0
  while true do
    local name = redis.call('ZRANGE', key.open(ref), at, at)[1]
    if not name then return nil end
    local block = load_block(ref, tonumber(string.match(name, ' (%d+)$')))
    for i, id in ipairs(block and ids_of(block) or {}) do
      if member_state(block, i - 1) == '1' and not ended[ref .. ':' .. id] then return id end
    end
    at = at + 1
  end
end

-- The first entry that it has not taken up.
local function first_waiting(stream, c, ended)
  local after, size = c.cursor, 1
  while true do
    local entries = redis.call('XRANGE', stream, '(' .. after, '+', 'COUNT', size)
    for _, entry in ipairs(entries) do
      if not ended[c.ref .. ':' .. entry[1]] then return entry[1] end
      after = entry[1]
    end
    if #entries < size then return nil end
    size = CHUNK
  end
end

-- A worker consumer needs what it has not taken up, and what its live jobs stand for.
local function worker_needs(stream, c, ended, need)
  local special = not c.ordered
    and redis.call('ZRANGEBYLEX', key.special(c.channel), '(' .. pad(c.special), '+', 'LIMIT', 0, 1)[1]
  need(c.name, first_waiting(stream, c, ended))
  need(c.name, special and unpad(special))
  need(c.name, oldest_live(c.ref, ended))
  need(c.name, oldest_leased(c.ref, ended))
end

local function cursor_needs(channel, stream, name, cursor, need)
  local epoch, id = string.match(cursor, '^%d+ (%d+) (.*)$')
  id = epoch and bound(channel, epoch, id)
  need(name, not id and EVERYTHING or first_entry(stream, '(' .. id))
end

-- A group needs what was not delivered to it, and what was delivered and not acknowledged: XPENDING alone
-- would know nothing of the former.
local function group_needs(stream, group, need)
  local known = find_group(stream, group)
  if not known then return need(group, EVERYTHING) end
  local pending = redis.call('XPENDING', stream, group)
  need(group, pending[1] > 0 and pending[2])
  need(group, first_entry(stream, '(' .. known['last-delivered-id']))
end

-- The id, and whose need it is; nil where nobody needs anything.
local function oldest_need(channel, ignored, groups, ended)
  local stream, oldest, holder = key.stream(channel), nil, nil
  local function need(name, id)
    if id and (not oldest or id_less(id, oldest)) then oldest, holder = id, name end
  end
  for _, ref in ipairs(redis.call('HVALS', key.consumers(channel))) do
    worker_needs(stream, load_consumer(ref), ended, need)
  end
  local cursors = redis.call('HGETALL', key.cursors(channel))
  for i = 1, #cursors, 2 do
    if not ignored[cursors[i]] then cursor_needs(channel, stream, cursors[i], cursors[i + 1], need) end
  end
  for _, group in ipairs(groups) do group_needs(stream, group, need) end
  return oldest, holder
end
