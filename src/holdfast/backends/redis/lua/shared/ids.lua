-- uses:
-- Entry ids, "milliseconds-sequence", as text: compared without losing digits, and padded where names sort.

local ZEROS = '0000000000000'

local function pad(id)
  local dash = string.find(id, '-', 1, true)
  local seq = string.sub(id, dash + 1)
  return string.sub(ZEROS, 1, math.max(0, 14 - dash)) .. string.sub(id, 1, dash)
    .. string.sub(ZEROS, 1, math.max(0, 9 - #seq)) .. seq
end

local function unpad(padded)
  local milliseconds, seq = string.match(padded, '^0*(%d+)%-0*(%d+)$')
  return milliseconds .. '-' .. seq
end

local function number_less(a, b)
  if #a ~= #b then return #a < #b end
  return a < b
end

local function id_less(a, b)
  local a_ms, a_seq = string.match(a, '^(%d+)%-(%d+)$')
  local b_ms, b_seq = string.match(b, '^(%d+)%-(%d+)$')
  if a_ms ~= b_ms then return number_less(a_ms, b_ms) end
  return number_less(a_seq, b_seq)
end

-- A job's name in the ready set: by due time, then in log order.
local function rank(due, id) return string.format('%016.0f', due) .. ':' .. pad(id) end

local function unrank(name) return unpad(string.sub(name, 18)) end

-- The newest id that a stream ever gave out, and how many entries it has.
local function last_id(stream)
  local info = redis.pcall('XINFO', 'STREAM', stream)
  local last, length = '0-0', 0
  if info.err then return last, length end
  for i = 1, #info, 2 do
    if info[i] == 'last-generated-id' then last = info[i + 1] end
    if info[i] == 'length' then length = info[i + 1] end
  end
  return last, length
end
