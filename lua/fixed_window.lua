-- Fixed window: a counter for each window of wall time, aligned to the Unix epoch.
--
-- Twin of crates/core/src/algorithm/fixed_window.rs.
--
-- Keys: STRING, the count, an integer in decimal. Each window has a key of its own: hit.key is that of
-- the window with index hit.first_index, and each following one of KEYS is that of the next window.

-- The largest count that is accepted: with a cost added it is below 2^53.
local MAX_COUNT = 9007199254740000

-- Most, in µs, that the end of a count may precede the end of its window: the clock of a script may go on
-- between two commands.
local END_TOLERANCE = 1000000

-- Most, in ms, that a counter outlives a window of a calendar: the window may end later in another zone, and
-- for a clock that steps back.
local GRACE = 93600000

-- Returns the key of the current window; nil if it is not among the declared ones.
local function key_of(hit, now)
  if hit.ends_at then return now >= hit.starts_at and now < hit.ends_at and hit.key or nil end
  local offset = (now - now % hit.window) / hit.window - hit.first_index
  if offset >= 0 and offset < hit.keys then return KEYS[hit.first_key + offset] end
end

-- Returns true if a counter that expires in `ttl_ms` is that of the window of `at`. A window of another
-- length may have had the same index: its counter expires too early. The key of a calendar's window has its
-- first day.
local function is_of(hit, at, ttl_ms)
  if hit.ends_at then return true end
  local expires_at = floor_millis(time) * 1000 + ttl_ms * 1000
  return ttl_ms < 0 or expires_at + END_TOLERANCE >= at - at % hit.window + hit.window
end

-- Returns the time to live of a counter that expires in `ttl_ms`, in µs. That of a calendar's window is the
-- time to the end of the window.
local function ttl_of(hit, ttl_ms)
  if hit.ends_at then return hit.ends_at - floor_millis(hit.now) * 1000 end
  if ttl_ms < 0 then return hit.window end
  return (floor_millis(hit.now - hit.frozen_for) + ttl_ms - floor_millis(hit.now)) * 1000
end

-- Writes a counter, by `call`, for a state or a hit.
local function write(call, counter, units)
  local expires_at_ms = floor_millis(counter.now) + counter.window / 1000
  if counter.ends_at then expires_at_ms = counter.ends_at / 1000 + GRACE end
  return call('SET', counter.key, integer(units), 'PXAT', integer(expires_at_ms))
end

-- Finds the counter of the current window for a hit. Returns true if it has one that expires, or none.
local function find_counter(hit)
  local key = key_of(hit, hit.now)
  local ttl_ms = key and redis.call('PTTL', key) or -1
  if ttl_ms == -1 or not is_of(hit, hit.now, ttl_ms) then return false end
  hit.key, hit.ttl, hit.is_new = key, ttl_of(hit, ttl_ms), ttl_ms == -2
  return true
end

-- Takes the cost of a hit. Returns the count after it, or another value if that fails.
local function count_cost(hit)
  if not hit.is_new then return redis.pcall('INCRBY', hit.key, integer(hit.cost)) end
  return write(redis.pcall, hit, hit.cost).ok and hit.cost
end

-- Takes back what the first hits, as many as `number`, have taken.
local function take_back(taken, number)
  for i = 1, number do
    local hit = taken[i]
    if hit.is_new then
      redis.pcall('DEL', hit.key)
    else
      redis.pcall('INCRBY', hit.key, integer(-hit.cost))
    end
  end
end

-- The hits of the request that `take` has seen last, and its values: requests that differ in their keys alone are
-- parsed once.
local takes, values_of_takes

-- Returns the hits of a request; false if it has others than takes from fixed windows that may be allowed.
local function takes_of(values)
  if values[1] ~= 'plain' then return false end
  local parsed, at = {}, 2
  for i = 1, values[2] do
    local name = values[at + 1]
    --@hit local FIELD = values[at + POSITION]
    local now = freeze(time, seen, window)
    local hit = {
      keys = keys, first_key = 0, first_index = first_index, key = false, units = units, window = window,
      cost = cost, now = now, frozen_for = now - time, ttl = 0, count = 0, is_new = false, starts_at = false,
      ends_at = false, rule = false,
    }
    at = at + HIT_FIELDS
    if action >= CALENDAR then
      action, hit.starts_at, hit.ends_at = action - CALENDAR, values[at + 1], values[at + 2]
      at = at + 2
    end
    --@full
    if action >= HOLDS then
      action, hit.holds = action - HOLDS, true
      at = at + 3
    end
    --@end
    --@control
    if action >= CONTROLLED then
      action, hit.rule = action - CONTROLLED, values[at + 1]
      at = at + 3
    end
    --@end
    if name ~= 'fixed_window' or action ~= TAKE or cost == 0 or cost > units then return false end
    parsed[i] = hit
  end
  return parsed
end

-- Finds the counters of the hits of a request. Returns the hits, those with new counters last, which are
-- allowed, and the index of the next of KEYS; nil if a counter never expires or is of another window, or a key
-- may have an override or holds.
local function find_counters()
  local found, new, key_at = {}, {}, next_key
  for i = 1, #takes do
    local hit = takes[i]
    hit.first_key, hit.key = key_at, KEYS[key_at]
    key_at = key_at + hit.keys
    --@control
    if hit.rule then
      local key = KEYS[key_at]
      if redis.call('HGET', key, hit.rule) then return end
      key_at = key_at + 1
    end
    --@end
    --@full
    if hit.holds then
      local key = KEYS[key_at]
      if redis.pcall('ZCARD', key) ~= 0 then return end
      key_at = key_at + 2
    end
    --@end
    if not find_counter(hit) then return end
    local list = hit.is_new and new or found
    list[#list + 1] = hit
  end
  for i = 1, #new do found[#found + 1] = new[i] end
  return found, key_at
end

-- The reply has the counts and the times to live before, from which the service decides. One unit alone
-- counts whether it is allowed or not. Of several hits all must be allowed.
function take(values)
  if values ~= values_of_takes then takes, values_of_takes = takes_of(values), values end
  if not takes then return false end
  local found, key_at = find_counters()
  if not found then return false end
  local counts_denied = #found == 1 and found[1].cost == 1 and not found[1].holds
  for i = 1, #found do
    local hit = found[i]
    local most = counts_denied and MAX_COUNT or hit.units - hit.cost
    local counted = count_cost(hit)
    local was_added = type(counted) == 'number'
    hit.count = was_added and counted - hit.cost or -1
    if hit.count < 0 or hit.count > most then
      take_back(found, was_added and i or i - 1)
      return false
    end
  end
  next_key = key_at
  length = length + 1
  reply[length] = 7
  for i = 1, #takes do
    reply[length + 1], reply[length + 2] = takes[i].count, max(takes[i].ttl, 1)
    length = length + 2
    --@control
    -- Neither an override nor holds.
    local zeros = (takes[i].rule and 4 or 0) + (takes[i].holds and 4 or 0)
    for part = 1, zeros do reply[length + part] = 0 end
    length = length + zeros
    --@end
  end
  return true
end

--@rest

-- Returns true if the request is counted although it is denied: of cost 1, in a full window.
local function is_attempt(limit, count, cost)
  return count >= limit.units and cost == 1 and limit.max_debt < 0
end

-- Returns the count at a key; nil if it has no valid one.
local function count_at(key)
  local value = read('GET', key)
  -- The format that INCRBY accepts.
  local is_count = type(value) == 'string' and (value:find('^[1-9]%d*$') or value == '0')
  local count = is_count and tonumber(value)
  return count and count <= MAX_COUNT and count or nil
end

-- Returns the state of a window without a counter.
local function none(hit, key)
  return {
    key = key, live = false, count = 0, ttl = hit.window, now = 0, window = 0, dirty = false,
    ends_at = hit.ends_at,
  }
end

-- Loads the state of the window of `at`. `key` is nil if it is not among the declared ones.
local function load_key(hit, at, key)
  local count = key and count_at(key)
  if not count then return none(hit, key) end
  local ttl_ms = redis.call('PTTL', key)
  if not is_of(hit, at, ttl_ms) then return none(hit, key) end
  return {
    key = key, live = true, endless = ttl_ms < 0, count = count, stored = count,
    ttl = ttl_of(hit, ttl_ms), now = 0, window = 0, dirty = false, ends_at = hit.ends_at,
  }
end

local function load(hit, now)
  return load_key(hit, now, key_of(hit, now))
end

local function decide(state, limit, now, cost)
  local window, ends_at = limit.window, limit.ends_at
  local available = max(limit.units - state.count, limit.least)
  local until_end = ends_at and ends_at - now or window - now % window

  local outcome = outcome_of(cost, available, limit.units)
  local taken = outcome == ALLOWED and cost or 0
  local counted = is_attempt(limit, state.count, cost) and 1 or taken
  return {
    outcome = outcome,
    current_count = state.count + counted,
    remaining = available - taken,
    retry_after = until_end,
    reset_after = until_end,
    ttl = ends_at and ends_at - floor_millis(now) * 1000 or max(state.ttl, 1),
    delay = 0,
  }
end

-- Adds to the count of the current window.
local function add(state, limit, now, counted)
  if counted == 0 then return end
  state.count = state.count + counted
  state.now, state.window, state.dirty = now, limit.window, true
end

local function commit(state, limit, now, cost, decision)
  local counted = is_attempt(limit, state.count, cost) and 1
  add(state, limit, now, counted or decision.outcome == ALLOWED and cost or 0)
end

local function save(state)
  if state.count <= 0 then
    redis.call('DEL', state.key)
  elseif state.live and not state.endless then
    redis.call('INCRBY', state.key, integer(state.count - state.stored))
  else
    write(redis.call, state, state.count)
  end
end

algorithms.fixed_window = {
  load = load, decide = decide, commit = commit, save = save,
  max_count = MAX_COUNT, keyed_by_window = true,
}

--@coupled

local function reset(state, limit)
  state.count, state.ttl = 0, limit.window
  state.live, state.dirty = false, true
end

local function refund(state, limit, now, taken)
  if state.count == 0 then return end
  state.count = max(min(state.count, limit.units - limit.least) - taken.cost, 0)
  if state.count == 0 then state.live, state.ttl = false, limit.window end
  state.now, state.window, state.dirty = now, limit.window, true
end

local function charge(state, limit, now, cost)
  local room = max(limit.units - limit.least - state.count, 0)
  add(state, limit, now, min(cost, room))
end

local function credit(state, limit, now, cost)
  refund(state, limit, now, { cost = cost, at = now })
end

-- Counts `used` units in the current window. Denied requests that were counted are dropped.
local function convert(state, from, limit, now, used)
  if from.window ~= limit.window then state.live, state.ttl = false, limit.window end
  state.count = used
  state.now, state.window, state.dirty = now, limit.window, true
end

local window = algorithms.fixed_window
window.refund, window.charge, window.reset, window.credit = refund, charge, reset, credit
window.convert = convert

-- Returns the state at a later time: that of another window is none.
function window.later(state, hit, at)
  local is_same = at - at % hit.window == hit.now - hit.now % hit.window
  if hit.ends_at then is_same = at < hit.ends_at end
  return is_same and state or none(hit, state.key)
end

-- Returns the state of the current window of another length, which is not declared: see
-- on_change.lua.
function window.count_before(history, from, now)
  local index = (now - now % from.window) / from.window
  return { count = history.index == index and history.count or 0, ttl = 0 }
end

-- Loads the state of the window in which the units of a refund were taken, if it is not the current
-- one. The counter of a calendar's past window has ended with it.
function window.load_past(hit)
  local at, window_now = hit.taken.at, hit.now - hit.now % hit.window
  if hit.ends_at then
    if at < hit.starts_at or at >= hit.ends_at then return none(hit, hit.taken_key) end
  elseif at - at % hit.window ~= window_now then
    return load_key(hit, at, hit.taken_key)
  end
end
