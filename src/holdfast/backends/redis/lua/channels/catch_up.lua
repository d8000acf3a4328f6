-- uses: keys clock ids batch consumers jobs log
-- Bring the consumers of a channel level with its log, one page each.
-- Reads the stream and {holdfast}:consumers:CHANNEL; writes {holdfast}:consumer:REF and what publish writes
-- for jobs.
-- ARGV: channel. Returns how many are still behind, those that began in the past aside.
local behind = 0
for _, ref in ipairs(redis.call('HVALS', key.consumers(ARGV[1]))) do
  local c = load_consumer(ref)
  if not c.target then
    local _, level = catch_up(c, PAGE)
    if not level then behind = behind + 1 end
  end
end
commit()
return behind
