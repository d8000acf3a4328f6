-- uses: keys
-- State records by due time, those of each part of the names in an order of their own: listing some does not
-- go through the others'.

-- The first three words of a longer name; nil for a shorter one, which stands in the common order.
local function part_of(name) return string.match(name, '^([^.]*%.[^.]*%.[^.]*)%.') end

local function set_due(name, due)
  local part = part_of(name)
  -- An older version had all of them in the common order.
  if part or due == '' then redis.call('ZREM', RECORDS, name) end
  if due ~= '' then
    redis.call('ZADD', part and key.records(part) or RECORDS, due, name)
    if part then redis.call('SADD', PARTS, part) end
  elseif part then
    redis.call('ZREM', key.records(part), name)
  end
end

-- The orders in which names with a prefix can stand.
local function orders(prefix)
  local part, found = part_of(prefix), {RECORDS}
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
