-- What every script starts with: the clock and integers.
--
-- A script is this file, then the algorithms that it needs, then check.lua. Lua numbers are
-- doubles: every number here is a whole number below 2^53.

-- Algorithms by name: { load, decide, commit }, the twins of src/algorithm/<name>.rs.
local algorithms = {}

-- Outcomes of a decision.
local ALLOWED, DENIED, IMPOSSIBLE = 0, 1, 2

-- The server's clock: microseconds since the Unix epoch.
local function clock()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end

-- The time at which to decide: a clock that stepped back by up to `window` is held at what was
-- seen, one that stepped back further is followed. Microseconds.
local function hold(now, seen, window)
  if seen > now and seen - now <= window then return seen end
  return now
end

-- Writes a whole number in full: tostring would keep 14 digits.
local function integer(number)
  return string.format('%.0f', number)
end

local function floor_millis(micros)
  return (micros - micros % 1000) / 1000
end
