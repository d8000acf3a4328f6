-- uses: keys clock ids batch consumers
-- Move the deadline of leases that are still held. Writes {holdfast}:job:REF:ID, {holdfast}:due:lease.
-- ARGV: by (µs), then for each job channel/consumer, id, token. Returns digits: see complete.
redis.call('PERSIST', STORE) -- after a first write the server refuses none for lack of memory
local deadline, answers = later(NOW, tonumber(ARGV[1])), {}
for i = 2, #ARGV, 3 do
  local c, id = find_consumer(ARGV[i]), ARGV[i + 1]
  local f = c and redis.call('HMGET', key.job(c.ref, id), 'state', 'token') or {}
  local accepted = f[1] == 'leased' and f[2] == ARGV[i + 2]
  if accepted then
    redis.call('HSET', key.job(c.ref, id), 'lease', deadline)
    defer('ZADD', LEASES, deadline, c.ref .. ':' .. id)
  end
  answers[#answers + 1] = accepted and '1' or '0'
end
commit()
return table.concat(answers)
