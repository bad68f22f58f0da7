-- Sliding window counter: the count of the current window plus a part of the previous one, weighted by
-- its overlap with the sliding window.
--
-- Twin of crates/core/src/algorithm/sliding_window_counter.rs.
--
-- Key: STRING `counter start current previous`, all integers in decimal: the start of the current
-- window in µs, and the counts of the current and the previous window.

-- Returns the windows at `now`: the same, the next one, or new ones after two windows without a request
-- or after a clock step back by more than a window.
local function rolled(state, limit, now)
  local window = limit.window
  if not state.start then return now, 0, 0 end
  local elapsed = max(now - state.start, 0)
  if elapsed >= 2 * window or is_from_the_future(state.start, now, limit) then return now, 0, 0 end
  if elapsed >= window then return state.start + window, 0, state.current end
  return state.start, state.current, state.previous
end

-- Returns the weight of `count` with `left` µs of its window inside the sliding window, rounded down.
local function weighted(count, left, limit)
  local whole = divide(left, count, 0, limit.window)
  return whole
end

-- Returns the time in µs from the start of the next window until the weighted `count` has fallen to
-- `most`. `count` must be more than `most`.
local function falls_to(most, count, limit)
  local whole = divide(limit.window, count - most - 1, 0, count)
  return whole + 1
end

local function load(hit)
  local start, current, previous = load_numbers(hit.key, '^counter (%d+) (%d+) (%d+)$')
  -- A value that no limit can have written counts as no state.
  if start and max(current, previous) > MAX_IN_USE then start = nil end
  return {
    key = hit.key, start = start, current = current, previous = previous, now = 0, until_left = 0,
    dirty = false,
  }
end

local function decide(state, limit, now, cost)
  local window = limit.window
  local start, current, previous = rolled(state, limit, now)
  local elapsed = max(now - start, 0)
  local estimate = weighted(previous, window - elapsed, limit) + current
  local available = max(limit.units - estimate, limit.least)

  local outcome = outcome_of(cost, available, limit.units)
  local retry_after = 0
  if outcome == DENIED then
    local most = limit.units - cost
    if current <= most then
      retry_after = falls_to(most - current, previous, limit) - elapsed
    else
      retry_after = window - elapsed + falls_to(most, current, limit)
    end
  end
  local taken = outcome == ALLOWED and cost or 0
  local until_left = 0
  if current + taken > 0 then
    until_left = 2 * window - elapsed
  elseif previous > 0 then
    until_left = window - elapsed
  end
  return {
    outcome = outcome,
    current_count = estimate + taken,
    remaining = available - taken,
    retry_after = retry_after,
    reset_after = until_left,
    ttl = until_left,
    delay = 0,
  }
end

-- Sets the windows.
local function set_state(state, limit, now, start, current, previous)
  state.start, state.current, state.previous = start, current, previous
  state.now, state.dirty = now, true
  local elapsed = max(now - start, 0)
  state.until_left = (current > 0 and 2 or 1) * limit.window - elapsed
end

local function commit(state, limit, now, cost, decision)
  if decision.outcome ~= ALLOWED then return end
  local start, current, previous = rolled(state, limit, now)
  set_state(state, limit, now, start, current + cost, previous)
end

local function save(state)
  if not state.start then
    redis.call('DEL', state.key)
    return
  end
  save_numbers(state.key, state.now, state.until_left, 'counter %d %d %d',
    state.start, state.current, state.previous)
end

algorithms.sliding_window_counter = { load = load, decide = decide, commit = commit, save = save }

--@coupled

local function reset(state)
  state.start, state.dirty = nil, true
end

-- Sets windows from which units were subtracted.
local function store_reduced(state, limit, now, start, current, previous)
  if current + previous == 0 then return reset(state) end
  -- Without requests in the current window, the previous one is again the latest with any.
  if current == 0 then start, current, previous = max(start - limit.window, 0), previous, 0 end
  set_state(state, limit, now, start, current, previous)
end

local function refund(state, limit, now, taken)
  if not state.start then return end
  local start, current, previous = rolled(state, limit, now)
  if taken.at >= start then
    current = max(current - taken.cost, 0)
  elseif start - taken.at <= limit.window then
    previous = max(previous - taken.cost, 0)
  end
  store_reduced(state, limit, now, start, current, previous)
end

local function charge(state, limit, now, cost)
  local start, current, previous = rolled(state, limit, now)
  local estimate = weighted(previous, limit.window - max(now - start, 0), limit) + current
  local room = max(limit.units - limit.least - estimate, 0)
  local counted = min(cost, room)
  if counted == 0 then return end
  set_state(state, limit, now, start, current + counted, previous)
end

local function credit(state, limit, now, cost)
  if not state.start then return end
  local start, current, previous = rolled(state, limit, now)
  local rest = max(cost - current, 0)
  store_reduced(state, limit, now, start, max(current - cost, 0), max(previous - rest, 0))
end

-- Counts `used` units in a window that starts now, up to the largest count, unless the windows have as
-- many already.
local function convert(state, from, limit, now, used)
  used = min(used, MAX_IN_USE)
  local is_same = from.window == limit.window and decide(state, limit, now, 0).current_count == used
  if not is_same then set_state(state, limit, now, now, used, 0) end
end

local counter = algorithms.sliding_window_counter
counter.refund, counter.charge, counter.reset, counter.credit = refund, charge, reset, credit
counter.convert = convert
