-- GCRA, the generic cell rate algorithm: the state is the theoretical arrival time (TAT).
--
-- Twin of crates/core/src/algorithm/gcra.rs.
--
-- Key: STRING `gcra tat part at units window`, all integers in decimal: the TAT in µs, its fraction in
-- 1 / units of a µs, the time of the last change in µs, and the rate at that time: units per window
-- in µs.

-- Returns the emission intervals of `units`: whole microseconds, and the fraction.
local function intervals(limit, units)
  return divide(limit.window, units, 0, limit.units)
end

-- Returns how far the TAT was ahead at the last change, converted to the rate of `limit` so that the
-- number of units in use is the same.
local function at_this_rate(state, limit)
  local ahead = max(state.tat - state.at, 0)
  if state.units == limit.units and state.window == limit.window then return ahead, state.part end
  local whole, rest = divide(ahead, state.units, state.part, state.window)
  return intervals(limit, min(whole + (rest > 0 and 1 or 0), limit.max_in_use))
end

-- Limits how far the TAT is ahead to the units that can be in use.
local function at_most(limit, ahead, part)
  local most, most_part = intervals(limit, limit.max_in_use)
  if ahead > most or ahead == most and part > most_part then return most, most_part end
  return ahead, part
end

-- Returns how far the TAT is ahead, as µs and fraction, and the time to which this refers: `now`, or
-- later if the state is from later.
local function ahead_of(state, limit, now)
  local known = state.tat and not is_from_the_future(state.at, now, limit)
  if not known then return 0, 0, now end
  local ahead, part = at_this_rate(state, limit)
  ahead, part = at_most(limit, ahead, part)
  local elapsed = max(now - state.at, 0)
  if elapsed > ahead then return 0, 0, now end
  return ahead - elapsed, part, max(state.at, now)
end

-- Adds `units` emission intervals.
local function later(ahead, part, limit, units)
  local whole, rest = intervals(limit, units)
  local sum, carry = part + rest, 0
  if sum >= limit.units then sum, carry = sum - limit.units, 1 end
  return ahead + whole + carry, sum
end

local function load(hit)
  local tat, part, at, units, window =
    load_numbers(hit.key, '^gcra (%d+) (%d+) (%d+) ([1-9]%d*) ([1-9]%d*)$')
  -- A value that no limit can have written counts as no state.
  if tat and (part >= units or units > MAX_UNITS or window > MAX_WINDOW) then tat = nil end
  return {
    key = hit.key, tat = tat, part = part, at = at, units = units, window = window, dirty = false,
  }
end

local function decide(state, limit, now, cost)
  local ahead, part, at = ahead_of(state, limit, now)
  local whole, rest = units_in(limit, ahead, part)
  local in_use = whole + (rest > 0 and 1 or 0)
  local available = max(limit.burst - in_use, limit.least)

  local outcome = outcome_of(cost, available, limit.burst)
  local retry_after = 0
  if outcome == DENIED then
    local room, room_part = intervals(limit, limit.burst - cost)
    retry_after = ahead - room + (part > room_part and 1 or 0)
  end
  local taken = outcome == ALLOWED and cost or 0
  ahead, part = later(ahead, part, limit, taken)
  local until_unused = ahead + (part > 0 and 1 or 0)
  return {
    outcome = outcome,
    current_count = in_use + taken,
    remaining = available - taken,
    retry_after = retry_after,
    reset_after = until_unused,
    ttl = until_unused,
    delay = 0,
    ahead = ahead,
    part = part,
    at = at,
  }
end

-- Sets the TAT to `ahead` and `part` after `at`.
local function set_state(state, limit, ahead, part, at)
  state.tat, state.part, state.at = at + ahead, part, at
  state.units, state.window, state.dirty = limit.units, limit.window, true
end

local function commit(state, limit, now, cost, decision)
  if decision.outcome ~= ALLOWED then return end
  set_state(state, limit, decision.ahead, decision.part, decision.at)
end

local function save(state)
  if not state.tat then
    redis.call('DEL', state.key)
    return
  end
  local tat, part, at = state.tat, state.part, state.at
  save_numbers(state.key, at, tat - at + (part > 0 and 1 or 0), 'gcra %d %d %d %d %d',
    tat, part, at, state.units, state.window)
end

algorithms.gcra = {
  load = load, decide = decide, commit = commit, save = save, pays_back = true,
}

--@coupled

-- Subtracts a length and its fraction, which must not be the larger ones.
local function earlier(ahead, part, limit, whole, rest)
  if part >= rest then return ahead - whole, part - rest end
  return ahead - whole - 1, part + limit.units - rest
end

local function reset(state)
  state.tat, state.dirty = nil, true
end

local function refund(state, limit, now, taken)
  if not state.tat then return end
  local ahead, part, at = ahead_of(state, limit, now)
  local left = max(taken.at + taken.reset_after - now, 0)
  local whole, rest = intervals(limit, taken.cost)
  if whole >= left then whole, rest = left, 0 end
  if ahead < whole or ahead == whole and part <= rest then return reset(state) end
  ahead, part = earlier(ahead, part, limit, whole, rest)
  set_state(state, limit, ahead, part, at)
end

local function charge(state, limit, now, cost)
  local ahead, part, at = ahead_of(state, limit, now)
  ahead, part = later(ahead, part, limit, min(cost, limit.max_in_use))
  ahead, part = at_most(limit, ahead, part)
  set_state(state, limit, ahead, part, at)
end

local function credit(state, limit, now, cost)
  local reset_after = decide(state, limit, now, 0).reset_after
  refund(state, limit, now, { cost = cost, at = now, reset_after = reset_after })
end

-- Leaves as many units, up to the burst.
local function carry(state, from, limit, now)
  local ahead, part, at = ahead_of(state, from, now)
  local whole, rest = units_in(from, ahead, part)
  local cut
  rest, cut = part_after(rest, from, limit)
  whole, rest = whole + limit.burst - from.burst, rest + (cut > 0 and 1 or 0)
  if whole < 0 or whole + rest == 0 then return reset(state) end
  ahead, part = divide(limit.window, whole, rest, limit.units)
  ahead, part = at_most(limit, ahead, part)
  set_state(state, limit, ahead, part, at)
end

-- Sets the TAT ahead by `used` emission intervals.
local function convert(state, from, limit, now, used)
  local _, _, at = ahead_of(state, from, now)
  local ahead, part = intervals(limit, used)
  set_state(state, limit, ahead, part, at)
end

local gcra = algorithms.gcra
gcra.refund, gcra.charge, gcra.reset, gcra.credit = refund, charge, reset, credit
gcra.convert, gcra.carry = convert, carry
