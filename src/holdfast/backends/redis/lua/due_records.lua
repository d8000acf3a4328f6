-- uses: keys clock records
-- State records whose due time has passed. Reads {holdfast}:records, {holdfast}:records:PART, {holdfast}:parts
-- and the records' hashes; one that another client removed is forgotten.
-- ARGV: prefix, limit, 1 for the newest first or 0 for the oldest. Answers for each record its name and its
-- flat hash.
local PAGE = 500
local prefix, limit, newest = ARGV[1], tonumber(ARGV[2]), ARGV[3] == '1'
local found, gone = {}, {}

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
  local due, taken, at = redis.call('ZCOUNT', order, '-inf', NOW_TEXT), 0, 0
  while taken < limit and at < due do
    local first, last = at, math.min(at + PAGE, due) - 1
    if newest then first, last = due - 1 - last, due - 1 - first end
    local page = redis.call('ZRANGE', order, first, last, 'WITHSCORES')
    for i = 1, #page, 2 do
      local place = newest and #page - i or i
      local name = page[place]
      if taken < limit and string.sub(name, 1, #prefix) == prefix then
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
  return a.due < b.due
end)
local answer = {}
for i = 1, math.min(#found, limit) do answer[i] = {found[i].name, found[i].fields} end
return answer
