-- uses:
-- Every key there is, and how its name is built. Nothing else builds a name.
-- The braces keep ours apart from the streams: no channel can have one in its name.
--
--   gbe:events:audit                  stream  the log of channel gbe.events.audit
--   gbe:lock:sweeper                  string  owner of the lock of exactly this name (expires with it)
--   gbe:state:tasks:email:t-1         hash    state record gbe.state.tasks.email.t-1; our revision among it
--   {holdfast}:store                  hash    schema, epoch, run_id, offset (µs), history and window (ms),
--                                             tokens (the lowest that is given out from now on),
--                                             live (jobs of all consumers), consumers (last number given),
--                                             revisions (last one given out)
--   {holdfast}:channels               hash    channel → when it was created (µs)
--   {holdfast}:epochs:CHANNEL         list    "EPOCH ID": entries after ID belong to EPOCH, oldest first
--   {holdfast}:log:CHANNEL            hash    noted (ID up to which the log was looked at), total (how many entries
--                                             there ever were up to there), removed (how many are gone), vanished
--                                             (those of them that another client took), trimmed (last ID gone),
--                                             full, display
--   {holdfast}:special:CHANNEL        zset    entries with a time or a priority, in log order
--   {holdfast}:repeats:CHANNEL        zset    other clients' entries that repeat an event, in log order
--   {holdfast}:bounded:CHANNEL        set     REFs of consumers with a max_depth
--   {holdfast}:chart:CHANNEL          zset    milestones of the log: "ID ORDINAL BYTES", see milestones.lua
--   {holdfast}:cursors:CHANNEL        hash    stream consumer → "MOVED EPOCH ID", or "MOVED" at the beginning
--   {holdfast}:consumers:CHANNEL      hash    consumer → its number, REF
--   {holdfast}:consumer:REF           hash    channel, name, policy and what scripts need of it, display,
--                                             revision; the frontier: cursor (ID up to which the log is taken
--                                             up), taken (its ordinal), special (the same for special entries),
--                                             about (taken is an estimate); base (last block of tokens), lost;
--                                             removed while it is going
--   {holdfast}:removals               hash    CHANNEL/CONSUMER → REF of those that are going
--   {holdfast}:counts:REF             hash    state → jobs, without those that wait in the log; dead:REASON →
--                                             dead letters
--   {holdfast}:behind                 set     channels with special entries that somebody has to take up
--   {holdfast}:ahead:REF              zset    entries beyond the cursor that were taken up one by one, in log order
--   {holdfast}:block:REF:BASE         hash    one lease of many jobs: see blocks.lua
--   {holdfast}:blocks:REF             zset    "ID BASE" of all blocks by their first ID, in log order
--   {holdfast}:open:REF               zset    those of them with jobs that are leased
--   {holdfast}:job:REF:ID             hash    one job of its own; ID is its entry's id in the stream
--   {holdfast}:ended:REF              zset    ID of such jobs that ended other than dead, by that time
--   {holdfast}:ready:REF              zset    claimable jobs by -priority, then by name: due time and ID
--   {holdfast}:scheduled:REF          zset    ID by due time
--   {holdfast}:lane:REF:KEY           zset    ordered consumers: the live jobs of a key in log order
--   {holdfast}:live:REF               zset    ID of live jobs of their own, by the ms of the entry that they need in
--                                             the log; at +inf those that came back after it was trimmed
--   {holdfast}:dead:REF               zset    ID of dead letters by time of death
--   {holdfast}:clusters:REF           zset    fingerprints by how many dead letters have it
--   {holdfast}:cluster:REF:FINGERPRINT        zset    ID of its dead letters by time of death
--   {holdfast}:recount:REF            hash    a count of the dead that is going on: how far it is, and what it
--                                             found (expires)
--   {holdfast}:due:lease              zset    REF:ID of leased jobs, REF:@BASE of leased blocks, by deadline
--   {holdfast}:due:schedule           zset    REF:ID of all scheduled jobs by due time
--   {holdfast}:due:expiry             zset    REF:ID of waiting jobs of their own that can expire, by that time
--   {holdfast}:due:head               zset    REF of consumers whose events expire, by when to look at the first
--                                             that waits
--   {holdfast}:event:CHANNEL/N:SOURCE/ID      string  idempotency key: content hash, epoch, entry (expires)
--   {holdfast}:verdict:RANDOM         string  whether a batch in several parts may come in (expires)
--   {holdfast}:lock:NAME              hash    token (outlives the lock), owner, until (µs)
--   {holdfast}:records                zset    state records of up to three words by due time
--   {holdfast}:records:PART           zset    longer ones, by their first three words: gbe.state.tasks
--   {holdfast}:parts                  set     every PART that has some
--   {holdfast}:wake                   pub/sub the name of a channel with new work, or CHANNEL/CONSUMER/ID of a
--                                             leased job that was cancelled

local PREFIX = '{holdfast}:'
local STORE, CHANNELS, BEHIND = PREFIX .. 'store', PREFIX .. 'channels', PREFIX .. 'behind'
local LEASES, SCHEDULES, EXPIRIES = PREFIX .. 'due:lease', PREFIX .. 'due:schedule', PREFIX .. 'due:expiry'
local HEADS = PREFIX .. 'due:head'
local WAKE, RECORDS, PARTS = PREFIX .. 'wake', PREFIX .. 'records', PREFIX .. 'parts'
local REMOVALS = PREFIX .. 'removals'

-- key.job(ref, id) is {holdfast}:job:REF:ID, and so on. Each call of a script makes all of its functions anew, which
-- takes longer than many of them: those of the keys are made when they are needed.
local key = setmetatable({}, {__index = function(made, kind)
  local prefix = PREFIX .. kind .. ':'
  made[kind] = function(first, second)
    return second and prefix .. first .. ':' .. second or prefix .. first
  end
  return made[kind]
end})
function key.stream(channel) return (string.gsub(channel, '%.', ':')) end
key.record = key.stream
-- The length keeps source and id from running into each other.
function key.event(channel, source, id)
  return PREFIX .. 'event:' .. channel .. '/' .. #source .. ':' .. source .. '/' .. id
end
