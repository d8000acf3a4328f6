-- uses: keys clock
-- State records whose due time has passed, oldest first. Reads {holdfast}:records and the records' hashes; one
-- that another client removed is forgotten.
-- ARGV: prefix, limit. Answers for each record its name and its flat hash.
local answer, at, prefix, limit = {}, 0, ARGV[1], tonumber(ARGV[2])
while #answer < limit do
  local names = redis.call('ZRANGEBYSCORE', RECORDS, '-inf', NOW_TEXT, 'LIMIT', at, 1000)
  for _, name in ipairs(names) do
    at = at + 1
    if string.sub(name, 1, #prefix) == prefix and #answer < limit then
      local fields = redis.call('HGETALL', key.record(name))
      if #fields > 0 then
        answer[#answer + 1] = {name, fields}
      else
        redis.call('ZREM', RECORDS, name)
        at = at - 1
      end
    end
  end
  if #names < 1000 then break end
end
return answer
