-- uses: clock records
-- State records whose due time has passed, or passes by another time. Reads {holdfast}:records, {holdfast}:records:PART,
-- {holdfast}:parts and the records' hashes; one that another client removed is forgotten.
-- ARGV: prefix, limit, 1 for the newest first or 0 for the oldest, that time (µs) or '' for now, and where to go on
-- from: a due time and a name.
-- Returns for each record its name and its flat hash.
local PAGE = 500
local prefix, limit, newest = ARGV[1], tonumber(ARGV[2]), ARGV[3] == '1'
local until_text = ARGV[4] == '' and NOW_TEXT or ARGV[4]
local from, from_name = tonumber(ARGV[5]), ARGV[6]
local found, gone = {}, {}

-- The order of names at the same time: by their bytes, as in a sorted set. That of Lua is the locale's.
local function is_before(a, b)
  for i = 1, math.min(#a, #b) do
    local x, y = string.byte(a, i), string.byte(b, i)
    if x ~= y then return x < y end
  end
  return #a < #b
end

local function is_passed(name, due)
  if not from or tonumber(due) ~= from then return false end
  if newest then return not is_before(name, from_name) end
  return not is_before(from_name, name)
end

local function take(order, name, due)
  local fields = redis.call('HGETALL', key.record(name))
  if #fields == 0 then
    gone[#gone + 1] = {order, name}
    return 0
  end
  found[#found + 1] = {name = name, due = tonumber(due), fields = fields}
  return 1
end

-- Page by page, by rank: a page costs the same wherever it is.
local function search(order)
  local due, taken, at = redis.call('ZCOUNT', order, '-inf', until_text), 0, 0
  if from and newest then due = math.min(due, redis.call('ZCOUNT', order, '-inf', ARGV[5])) end
  if from and not newest then at = redis.call('ZCOUNT', order, '-inf', '(' .. ARGV[5]) end
  while taken < limit and at < due do
    local first, last = at, math.min(at + PAGE, due) - 1
    if newest then first, last = due - 1 - last, due - 1 - first end
    local page = redis.call('ZRANGE', order, first, last, 'WITHSCORES')
    for i = 1, #page, 2 do
      local place = newest and #page - i or i
      local name = page[place]
      if taken < limit and string.sub(name, 1, #prefix) == prefix and not is_passed(name, page[place + 1]) then
        taken = taken + take(order, name, page[place + 1])
      end
    end
    at = at + PAGE
  end
end

for _, order in ipairs(orders(prefix)) do search(order) end
for _, each in ipairs(gone) do redis.call('ZREM', each[1], each[2]) end
table.sort(found, function(a, b)
  if newest then a, b = b, a end
  if a.due == b.due then return is_before(a.name, b.name) end
  return a.due < b.due
end)
local answer = {}
for i = 1, math.min(#found, limit) do answer[i] = {found[i].name, found[i].fields} end
return answer
