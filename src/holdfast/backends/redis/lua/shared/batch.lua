-- uses: clock
-- Writes that wait, so that a thousand members go in with one call. Whatever is read back in the same script
-- must be committed first; a script commits before it returns.

local MOST = 2000 -- well below what unpack can spread
local pending, counts = {}, {}
local flushers = {} -- what must be written first, by whoever collects changes of its own
local LIVE = {waiting = true, scheduled = true, ready = true, leased = true}

local function send(name)
  local batch = pending[name]
  pending[name] = nil
  redis.call(batch.command, name, unpack(batch.args))
end

-- An addition and a removal of the same key keep their order.
local function defer(command, name, first, second)
  local batch = pending[name]
  if batch and (batch.command ~= command or #batch.args >= MOST) then
    send(name)
    batch = nil
  end
  if not batch then
    batch = {command = command, args = {}}
    pending[name] = batch
  end
  batch.args[#batch.args + 1] = first
  if second then batch.args[#batch.args + 1] = second end
end

local function add(totals, ref, name, by)
  local mine = totals[ref] or {}
  mine[name] = (mine[name] or 0) + by
  totals[ref] = mine
end

-- A job that waits in the log, `waiting`, is counted for the store alone: a consumer's are a difference.
local function count(ref, state, by) add(counts, ref, state, by) end

local function commit()
  for _, flush in ipairs(flushers) do flush() end
  local names, live = {}, 0
  for name in pairs(pending) do names[#names + 1] = name end
  for _, name in ipairs(names) do send(name) end
  for ref, states in pairs(counts) do
    for state, by in pairs(states) do
      if by ~= 0 and state ~= 'waiting' then redis.call('HINCRBY', key.counts(ref), state, by) end
      if LIVE[state] then live = live + by end
    end
  end
  if live ~= 0 then redis.call('HINCRBY', STORE, 'live', live) end
  counts = {}
end
