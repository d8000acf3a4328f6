-- uses: blocks jobs
-- leased → done. Reads {holdfast}:consumer:REF; writes {holdfast}:job:REF:ID, {holdfast}:block:REF:BASE,
-- {holdfast}:open:REF, {holdfast}:due:lease, {holdfast}:counts:REF, {holdfast}:live:REF,
-- {holdfast}:ended:REF, {holdfast}:lane:REF:KEY and, for the next of a lane, {holdfast}:ready:REF.
-- ARGV: for each run of jobs with successive tokens channel/consumer, the first token, their ids with blanks
-- between.
-- Returns one digit for each job: 1 accepted, 0 refused.
redis.call('PERSIST', STORE) -- after a first write the server refuses none for lack of memory
local answers = {}

local function complete(c, id, token)
  local f = c and redis.call('HMGET', key.job(c.ref, id), 'state', 'token', 'key', 'patch') or {}
  if f[1] ~= 'leased' or tonumber(f[2]) ~= token then return '0' end
  defer('ZREM', LEASES, c.ref .. ':' .. id)
  end_job(c, id, {state = 'leased', key = f[3], patch = f[4]}, 'done')
  return '1'
end

local function count_done(c, by)
  count(c.ref, 'leased', -by)
  count(c.ref, 'done', by)
end

for i = 1, #ARGV, 3 do
  local c, token, text = find_consumer(ARGV[i]), tonumber(ARGV[i + 1]), ARGV[i + 2]
  local at = token % SIZE
  local block = c and c.base and load_block(c.ref, token - at)
  local members = block and ids_of(block) or {}
  if block and at == 0 and block.left == block.n and block.marked == 0 and table.concat(members, ' ') == text then
    close_all(block)
    count_done(c, block.n)
    answers[#answers + 1] = string.rep('1', block.n)
  else
    for id in string.gmatch(text, '%S+') do
      if c and leased_member(c, id, token) then
        close_member(block, at, '0')
        count_done(c, 1)
        answers[#answers + 1] = '1'
      else
        answers[#answers + 1] = complete(c, id, token)
      end
      at, token = at + 1, token + 1
    end
  end
end
commit()
return table.concat(answers)
