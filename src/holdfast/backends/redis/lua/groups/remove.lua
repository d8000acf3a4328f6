-- uses: log locks groups
-- Remove a foreign group, unless a member was seen lately or could not have been. Reads {holdfast}:lock:NAME
-- and the stream; changes its groups.
-- ARGV: channel, group, alive (ms), lock, token. Returns whether it was removed; without a token, whether it
-- would be.
if ARGV[5] ~= '' then fence(ARGV[4], ARGV[5]) end
local stream, alive = key.stream(ARGV[1]), tonumber(ARGV[3])
local first = members_of(stream, ARGV[2])[1]
if first and first.idle <= alive then return 0 end
-- Before 7.2 only a member that got something was seen: one that waits for news looks like one that is gone.
-- There it must have left something lie for that long.
if first and not first.inactive then
  local delivered = find_group(stream, ARGV[2])['last-delivered-id']
  local waits = redis.call('XRANGE', stream, '(' .. delivered, '+', 'COUNT', 1)[1]
  if not waits or published_at(waits[1], fields_of(waits)) > NOW - alive * 1000 then return 0 end
end
if ARGV[5] == '' then return find_group(stream, ARGV[2]) and 1 or 0 end
local destroyed = redis.pcall('XGROUP', 'DESTROY', stream, ARGV[2])
return type(destroyed) == 'number' and destroyed or 0
