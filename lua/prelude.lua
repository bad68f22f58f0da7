-- What every script starts with: the clock and integers.
--
-- A script is this file, then the algorithms that it needs, then coupled.lua, then check.lua. Each call
-- makes all functions of its script, so where each request is one plain hit, coupled.lua is left out,
-- and of the other files what stands below a line `--@coupled`. Lua numbers are doubles: every number
-- here is a whole number below 2^53.

local max, min, floor, ceil = math.max, math.min, math.floor, math.ceil

-- Algorithms by name, the twins of crates/core/src/algorithm/<name>.rs. Each has steps on a table, the
-- state of one key: load reads it; decide only looks; commit, refund, charge, reset and credit change
-- the table and set `dirty`; save writes it, once, when all is decided. take_one stands where one unit
-- can be taken in fewer commands, max_cost where one request may not take more.
local algorithms = {}

-- Unique for each call.
local NONCE = ARGV[1]

-- The most units per window, and the longest window in µs: 366 days.
local MAX_UNITS, MAX_WINDOW = 1000000000, 31622400000000

-- Outcomes of a decision.
local ALLOWED, DENIED, IMPOSSIBLE = 0, 1, 2

-- Actions of a hit. A peek, 0, takes nothing.
local TAKE, REPORT, REFUND, CREDIT, RESET = 1, 2, 3, 4, 5

-- The request at hand: how its hits depend on each other, and they. A hit is its own limit:
-- `units` per `window`, `burst`, `most_in_use` of a burst with its debt, and `least`, what is left in
-- the deepest debt.
local coupling, hits, count = nil, {}, 0

-- Answers requests that are more than one plain hit; in coupled.lua.
local execute_coupled

-- Has a write of the request at hand succeeded? If a later one fails, it stands.
local wrote = false

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
  if number == 1 then return '1' end
  return string.format('%.0f', number)
end

local function floor_millis(micros)
  return (micros - micros % 1000) / 1000
end

-- Allows what fits into the `available` units; denies what could fit into `most`.
local function outcome_of(cost, available, most)
  if cost <= available then return ALLOWED end
  return cost > most and IMPOSSIBLE or DENIED
end

-- (time * units + more) / by: quotient and remainder, exact though the product may be above 2^53.
-- units are below 2^36, by and more are at most 366 days in µs, the quotient is below 2^53.
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

-- The whole units that come in `span`, and the part of the next one, counted in units divided by
-- the window's microseconds. `part` is what was left from before.
local function units_in(limit, span, part)
  return divide(span, limit.units, part, limit.window)
end

-- The shortest time in which `units` less `part` of one come.
local function time_for(limit, units, part)
  local whole, rest = divide(limit.window, units, 0, limit.units)
  return whole + ceil((rest - part) / limit.units)
end

-- The time from the deepest debt to a whole burst.
local function fill_time(limit)
  return time_for(limit, limit.max_in_use, 0)
end

-- Is a state of `at` from a clock that has jumped back since? It counts as none then.
local function is_from_the_future(at, now, limit)
  return at > now + limit.window
end

-- What a command answers; nil where the key holds a value of another type, which is no state.
-- Any other error ends the script: an unreadable state must not pass for none.
local function read(command, key, ...)
  local answer = redis.pcall(command, key, ...)
  if type(answer) ~= 'table' or not answer.err then return answer end
  if not answer.err:find('WRONGTYPE', 1, true) then error(answer) end
end

-- The numbers that `remember` wrote in this form, or nothing: a foreign value is no state.
local function load_numbers(key, form)
  local value = read('GET', key)
  if type(value) ~= 'string' then return end
  local numbers = { value:match(form) }
  for i, digits in ipairs(numbers) do
    numbers[i] = tonumber(digits)
    if numbers[i] > 9007199254740992 then return end
  end
  return unpack(numbers)
end

-- Writes a state of `now` that makes no difference once `spent_after` µs are over; it lives a
-- second longer. The time to live ends at a point in time: `now` may be held ahead of the clock.
local function save_numbers(key, now, spent_after, ...)
  local value = string.format(...)
  local expires_at = floor_millis(now) + ceil(spent_after / 1000) + 1000
  redis.call('SET', key, value, 'PXAT', integer(expires_at))
end

--@coupled

-- What of the units that a refund has `taken` may still be out at `now`: units, and the part of one in
-- units divided by the window's microseconds. Had nobody else asked, the bucket would be whole again
-- when `taken` said: no more is out than what comes until then.
local function outstanding(limit, now, taken)
  local left = max(taken.at + taken.reset_after - now, 0)
  if left >= time_for(limit, taken.cost, 0) then return taken.cost, 0 end
  return units_in(limit, left, 0)
end
