-- The beginning of every script: constants, variables, the clock, integer arithmetic, and numbers in
-- strings.
--
-- A script consists of the other files too, of one algorithm or of all. Redis creates all functions of a
-- script on each call, which takes longer than a few commands. So most of it is in a function, `rest`, which
-- is called for the first request that `take` can't execute: what follows a line `--@rest` here and in
-- fixed_window.lua, what precedes it in check.lua, and the other files. And there are three kinds of scripts:
--   lean              plain.lua and check.lua, for plain requests; of each file the part above a line
--                     `--@coupled`, without the lines from `--@control` or `--@full` to `--@end`
--   lean, overrides   as lean, with control.lua and the lines from `--@control`
--   full              everything
-- control.lua, on_change.lua, holds.lua, idempotency.lua and, with its part of an algorithm below `--@coupled`,
-- coupled.lua are in one function, `define`, which check.lua calls for the first request that needs one of
-- them. The algorithms of a script for all are in functions, too: see `definitions`.
--
-- Lua numbers are doubles. All numbers here are whole and below 2^53, up to which doubles are exact.

local max, min, floor, ceil = math.max, math.min, math.floor, math.ceil

-- Text, unique for each call.
local NONCE = ARGV[1]

-- Actions of hits. 0 is a peek, which takes nothing.
local TAKE, REPORT, REFUND, CREDIT, RESET = 1, 2, 3, 4, 5

-- Added to the action of a hit that is overridable, that keeps its limits, whose rule holds, and whose window
-- is that of a calendar.
local CONTROLLED, KEEPS_LIMITS, HOLDS, CALENDAR = 16, 32, 64, 128

-- Time of the call by the clock of the Redis server, in µs since the Unix epoch.
local time = redis.call('TIME')
time = time[1] * 1000000 + time[2]

-- The values of the reply, and their number.
local reply, length = { NONCE, time }, 2

-- Index of the first of KEYS that is not assigned to a hit yet.
local next_key = 1

-- Executes a plain request that only takes from fixed windows, and appends to the reply, if that takes a few
-- commands; else it does nothing and returns false. Defined in fixed_window.lua; nil in scripts without it.
local take

-- Returns the time of a decision in µs: a clock that stepped back from `seen` by up to `window` is
-- frozen at `seen`, one that stepped back further is followed.
local function freeze(now, seen, window)
  if seen > now and seen - now <= window then return seen end
  return now
end

-- Formats whole numbers with all digits; tostring would keep 14. `%.0f` takes twice as long as `%d`,
-- which has 32 bits on servers of 32 bits.
local has_64_bits
local function format(form, ...)
  has_64_bits = has_64_bits or string.format('%d', 9007199254740992) == '9007199254740992'
  if not has_64_bits then form = form:gsub('%%d', '%%.0f') end
  return string.format(form, ...)
end

local function integer(number)
  if number == 1 then return '1' end
  return format('%d', number)
end

local function floor_millis(micros)
  return (micros - micros % 1000) / 1000
end

--@rest

-- Algorithms by name, the twins of crates/core/src/algorithm/<name>.rs. An algorithm is a table of
-- steps on a state, which is a table for one key:
--   load      reads the state
--   decide    returns a decision and changes nothing
--   commit, refund, charge, reset, credit   change the state and set `dirty`
--             (commit gets the last decision on the state, which may carry values for it)
--   convert   changes the state into one with another number of units in use
--   carry     optional: carries the state over to another limit as it is
--   save      writes the state; called once, after all decisions
--   max_cost  optional: most units that one request may take
--   max_count  optional: the largest count, if it is not MAX_IN_USE
--   keyed_by_window  optional: true if each window has keys of its own
--   pays_back  optional: true if units become available again at the rate of the limit
local algorithms = {}

-- The most units per window, and the longest window in µs: 366 days.
local MAX_UNITS, MAX_WINDOW = 1000000000, 31622400000000

-- The longest time in which a burst may become available again, in µs: 100 years.
local MAX_FILL = 3162240000000000

-- The most units in use of a bucket, and the largest count of a sliding window counter: see `divide`.
local MAX_IN_USE = 68719476735

-- Outcomes of decisions.
local ALLOWED, DENIED, IMPOSSIBLE = 0, 1, 2

-- The current request: its coupling, its hits and their number. A hit also serves as its limit:
-- `units` per `window` (µs), `burst`, `shared_burst` and `shared_units` (the most of the limits that
-- decide on the same state; 0 units: it decides alone), `max_in_use` (shared burst and debt), and `least`
-- (the negative debt).
local coupling, hits, count = nil, {}, 0

-- Executes requests that are not plain. Defined in coupled.lua; nil before the first one.
local execute_coupled

-- The functions of control.lua, on_change.lua, holds.lua and idempotency.lua for other files; nil before the
-- first request that needs the file.
local control, on_change, holds, idempotency
--@rare
local budgets
--@end

-- The request id and the reservation of the current request; nil if it has none.
local once, reservation

-- Appends the values of all hits to a list of this length, and returns its new length. Defined in
-- check.lua.
local append_hits

-- True if a write of the current request has succeeded. It is not undone if a later one fails.
local wrote = false

-- Decides on `cost`: allowed if at most `available` units, denied if at most `most`, else impossible.
local function outcome_of(cost, available, most)
  if cost <= available then return ALLOWED end
  return cost > most and IMPOSSIBLE or DENIED
end

-- Returns quotient and remainder of (time * units + more) / by, exact even if the product is above
-- 2^53. `units` must be below 2^36, `by` and `more` at most 366 days in µs, the quotient below 2^53.
local function divide(time, units, more, by)
  local sum = time * units + more
  if sum < 9007199254740992 then
    local rest = sum % by
    return (sum - rest) / by, rest
  end
  -- Long division in digits of 64: (time % by) * digits so far = quotient * by + rest.
  local time_rest = time % by
  local quotient, rest = 0, 0
  for power = 5, 0, -1 do
    local digit = floor(units / 64 ^ power) % 64
    sum = rest * 64 + time_rest * digit
    rest = sum % by
    quotient = quotient * 64 + (sum - rest) / by
  end
  sum = rest + more
  rest = sum % by
  return (time - time_rest) / by * units + quotient + (sum - rest) / by, rest
end

-- Returns the whole units that become available in `span` µs, and the fraction of the next one.
-- `part` is the fraction to start from. Fractions are in 1 / window microseconds of a unit.
local function units_in(limit, span, part)
  return divide(span, limit.units, part, limit.window)
end

-- Returns the shortest time in µs in which `units` minus the fraction `part` become available.
local function time_for(limit, units, part)
  local whole, rest = divide(limit.window, units, 0, limit.units)
  return whole + ceil((rest - part) / limit.units)
end

-- Returns the time in µs from the largest debt to the largest burst. More than a bucket may have in use
-- is the count of a window, which ends with it.
local function fill_time(limit)
  if limit.max_in_use > MAX_IN_USE then return limit.window end
  return time_for(limit, limit.max_in_use, 0)
end

-- Returns true if a state was written at `at` by a clock that has stepped back by more than a window
-- since. Such a state counts as none.
local function is_from_the_future(at, now, limit)
  return at > now + limit.window
end

-- Calls a command that reads `key`, and returns its result: nil if the key has another type, which
-- counts as no state. Raises any other error, because a state that cannot be read must not count as
-- none.
local function read(command, key, ...)
  local result = redis.pcall(command, key, ...)
  if type(result) ~= 'table' or not result.err then return result end
  if not result.err:find('WRONGTYPE', 1, true) then error(result) end
end

-- Returns the numbers, five at most, that `save_numbers` wrote in this form; nothing for any other
-- value, which counts as no state.
local function load_numbers(key, form)
  local value = read('GET', key)
  if type(value) ~= 'string' then return end
  local a, b, c, d, e = value:match(form)
  if not a then return end
  a, b, c, d, e = tonumber(a), tonumber(b), tonumber(c), tonumber(d), tonumber(e)
  if max(a, b or 0, c or 0, d or 0, e or 0) > 9007199254740992 then return end
  return a, b, c, d, e
end

-- Writes a state that has no effect from `spent_after` µs after `now`. It expires a second later, at
-- an absolute time, because `now` may be frozen ahead of the server's clock.
local function save_numbers(key, now, spent_after, ...)
  local value = format(...)
  local expires_at = floor_millis(now) + ceil(spent_after / 1000) + 1000
  redis.call('SET', key, value, 'PXAT', integer(expires_at))
end

--@coupled

-- Converts the fraction of a unit, in 1 / window µs of a unit, to another window: the quotient rounded
-- down, and the remainder. Windows are whole milliseconds.
local function part_after(part, from, limit)
  return divide(part, limit.window / 1000, 0, from.window / 1000)
end

-- Returns the units of `taken` that may be outstanding at `now`, not refilled since: whole units, and
-- a fraction in 1 / window microseconds of a unit. Without other requests the bucket is full
-- `reset_after` after the units were taken, so no more of them are outstanding than are refilled from
-- now until then.
local function outstanding(limit, now, taken)
  local left = max(taken.at + taken.reset_after - now, 0)
  if left >= time_for(limit, taken.cost, 0) then return taken.cost, 0 end
  return units_in(limit, left, 0)
end
