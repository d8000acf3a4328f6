-- uses: keys
-- The store's time, epoch and settings, read once per call. Times are microseconds since 1970: whole numbers
-- that a double and a score hold exactly until the year 2255, where longer ones are cut.

local FAR = 9007199254740991
local FIRST_DAY = 20089 -- 2025-01-01

-- Concatenation would write a large number with 14 digits only.
local function whole(number) return string.format('%.0f', number) end

local function later(time, by) return math.min(time + by, FAR) end

local settings = redis.call('HMGET', STORE, 'offset', 'epoch', 'history', 'window', 'tokens')
local server_time = redis.call('TIME')
local OFFSET = tonumber(settings[1]) or 0
local NOW = tonumber(server_time[1]) * 1000000 + tonumber(server_time[2]) + OFFSET
local NOW_TEXT = whole(NOW)

-- An empty server begins with the number of the day, so that one which replaces another goes on above it.
local TODAY = math.max(1, math.floor(NOW / 86400000000) - FIRST_DAY)
local EPOCH = settings[2] or whole(TODAY)
local HISTORY, WINDOW = tonumber(settings[3]) or 86400000, tonumber(settings[4]) or 604800000

-- Tokens go on above every one that a server before this one may have given out, also those that were lost.
local TOKENS = tonumber(settings[5]) or 0
local function next_token(last) return math.max((tonumber(last) or 0) + 1, TOKENS) end

-- A revision above the last one of a record or a consumer, and above all of those that had its name before.
local function next_revision(last)
  local revision = next_token(math.max(last, tonumber(redis.call('HGET', STORE, 'revisions')) or 1))
  redis.call('HSET', STORE, 'revisions', whole(revision))
  return revision
end
