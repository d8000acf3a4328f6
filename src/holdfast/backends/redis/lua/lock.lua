-- uses: keys clock locks
-- Take a lock that is free or past its deadline. Writes {holdfast}:lock:NAME and the key of the lock's name.
-- ARGV: name, owner, ttl (µs). Answers token and deadline (µs); nothing while it is held.
local lock = read_lock(ARGV[1])
if lock.foreign or (lock.ends and lock.ends > NOW) then return false end
local token = redis.call('HINCRBY', key.lock(ARGV[1]), 'token', 1)
return {token, hold(ARGV[1], ARGV[2], tonumber(ARGV[3]))}
