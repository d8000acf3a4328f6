-- uses: locks
-- Move a lock's deadline, also past it, while nobody else took it. Writes {holdfast}:lock:NAME and the key of
-- the lock's name.
-- ARGV: name, token, ttl (µs). Returns the deadline (µs).
redis.call('PERSIST', STORE) -- after a first write the server refuses none for lack of memory
local lock = read_lock(ARGV[1])
if not is_holder(lock, ARGV[2]) then error('HFLOCK ' .. ARGV[1] .. ' ' .. ARGV[2]) end
return hold(ARGV[1], lock.owner, tonumber(ARGV[3]))
