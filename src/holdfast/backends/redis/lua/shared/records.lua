-- uses: keys
-- State records by due time, those of each part of the names in an order of their own: listing some does not
-- go through the others'.

-- The first three words of a longer name; nil for a shorter one, which stands in the common order.
local function part_of(name) return string.match(name, '^([^.]*%.[^.]*%.[^.]*)%.') end

local function set_due(name, due)
  local part = part_of(name)
  local order = part and key.records(part) or RECORDS
  if due == '' then
    redis.call('ZREM', order, name)
  else
    redis.call('ZADD', order, due, name)
    if part then redis.call('SADD', PARTS, part) end
  end
end

-- The orders in which names with a prefix can stand.
local function orders(prefix)
  local part = part_of(prefix)
  local found = part and {} or {RECORDS}
  for _, each in ipairs(part and {part} or redis.call('SMEMBERS', PARTS)) do
    if part or string.sub(each .. '.', 1, #prefix) == prefix then
      if redis.call('EXISTS', key.records(each)) == 1 then
        found[#found + 1] = key.records(each)
      else
        redis.call('SREM', PARTS, each)
      end
    end
  end
  return found
end
