-- uses: locks
-- Take a lock that is free or past its deadline. Writes {holdfast}:lock:NAME and the key of the lock's name.
-- ARGV: name, owner, ttl (µs). Returns token and deadline (µs); nothing while it is held.
redis.call('PERSIST', STORE) -- after a first write the server refuses none for lack of memory
local lock = read_lock(ARGV[1])
if lock.foreign or (lock.ends and lock.ends > NOW) then return false end
-- One that is not known may have been held before the store was lost: its tokens begin at the time.
local token = next_token(lock.token or NOW)
redis.call('HSET', key.lock(ARGV[1]), 'token', token)
return {token, hold(ARGV[1], ARGV[2], tonumber(ARGV[3]))}
