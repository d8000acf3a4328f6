-- uses: locks
-- Free a lock if it is still this holder's; its token stays. Writes {holdfast}:lock:NAME and the key of the
-- lock's name.
-- ARGV: name, token. Returns whether it was.
if not is_holder(read_lock(ARGV[1]), ARGV[2]) then return 0 end
redis.call('HDEL', key.lock(ARGV[1]), 'owner', 'until')
redis.call('DEL', ARGV[1])
return 1
