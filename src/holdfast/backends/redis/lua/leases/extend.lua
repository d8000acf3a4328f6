-- uses: exceptions
-- Move the deadline of leases that are still held. Where only some of a block are extended, the fewer leave
-- it. Writes {holdfast}:job:REF:ID, {holdfast}:block:REF:BASE, {holdfast}:due:lease, {holdfast}:live:REF and,
-- of a block that is left by all, {holdfast}:blocks:REF, {holdfast}:open:REF.
-- ARGV: by (µs), then runs of jobs as for complete. Returns digits: see complete.
redis.call('PERSIST', STORE) -- after a first write the server refuses none for lack of memory
local deadline, answers, extended = later(NOW, tonumber(ARGV[1])), {}, {}

local function extend_job(c, id)
  redis.call('HSET', key.job(c.ref, id), 'lease', whole(deadline))
  defer('ZADD', LEASES, whole(deadline), c.ref .. ':' .. id)
end

for i = 2, #ARGV, 3 do
  local c, token = find_consumer(ARGV[i]), tonumber(ARGV[i + 1])
  for id in string.gmatch(ARGV[i + 2], '%S+') do
    local block, at
    if c then block, at = leased_member(c, id, token) end
    local job = c and not block and peek_leased(c, id, token)
    if block then
      local mine = extended[block] or {c = c, places = {}, many = 0}
      extended[block] = mine
      mine.many = mine.many + (mine.places[at] and 0 or 1)
      mine.places[at] = true
    elseif job then
      extend_job(c, id)
    end
    answers[#answers + 1] = (block or job) and '1' or '0'
    token = token + 1
  end
end
for block, mine in pairs(extended) do
  local together = 2 * mine.many >= block.left
  for at, id in ipairs(ids_of(block)) do
    at = at - 1
    if member_state(block, at) == '1' and (mine.places[at] or false) ~= together then
      take_out(mine.c, id, peek_block(mine.c, id))
      if not together then extend_job(mine.c, id) end
    end
  end
  if together then
    redis.call('HSET', block.name, 'lease', whole(deadline))
    defer('ZADD', LEASES, whole(deadline), lease_name(block))
  end
end
commit()
return table.concat(answers)
