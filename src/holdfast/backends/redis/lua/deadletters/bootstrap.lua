-- uses: locks
-- Whether what was dead before there were clusters has been counted, once in a store's life. Reads
-- {holdfast}:lock:NAME; writes {holdfast}:store.
-- ARGV: 1 to note that it has or 0, lock, token. Returns whether it had.
fence(ARGV[2], ARGV[3])
local known = redis.call('HEXISTS', STORE, 'clusters')
if ARGV[1] == '1' then redis.call('HSET', STORE, 'clusters', NOW_TEXT) end
return known
