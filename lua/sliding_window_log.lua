-- Sliding window log: an entry for each unit of the last window.
--
-- Twin of crates/core/src/algorithm/sliding_window_log.rs.
--
-- Key: ZSET with an entry for each unit: score ms (Unix time in milliseconds), member `{ms}-{suffix}`.
-- The suffix is unique: `{nonce}.{number}.{unit}`, with the nonce of the script call, the number of
-- the hit in it, and the number of the unit.

-- Most entries that one request writes.
local MAX_WRITTEN = 10000
-- Most members in one ZADD: Lua's stack, which holds its arguments, is small.
local MEMBERS_PER_CALL = 1000

-- Loads the range of scores inside the window, and the number of entries in it.
local function load(hit, now)
  local key, now_ms = hit.key, floor_millis(now)
  local first, last = '(' .. integer(now_ms - hit.window / 1000), integer(now_ms)
  local stored = read('ZCOUNT', key, first, last)
  local count = stored or 0
  return {
    key = key, first = first, last = last, wrong_type = not stored, now_ms = now_ms,
    count = count, stored = count, added = 0, number = false, expires_at_ms = false, dirty = false,
  }
end

-- Returns the position in Redis of the entry at `position`, which does not count entries that are
-- planned for removal. Both count from 0 for the oldest entry inside the window.
local function stored_position(state, position)
  for _, removal in ipairs(state.removals) do
    -- Below 0 are entries that have left the window.
    if removal.position >= 0 and position >= removal.position then
      position = position + removal.units
    end
  end
  return position
end

-- Returns the score of the entry at `position`. The youngest ones may not be written yet.
local function score_at(state, position)
  if state.removals then position = stored_position(state, position) end
  if position >= state.stored then return state.now_ms end
  local entry = redis.call('ZRANGEBYSCORE', state.key, state.first, state.last,
    'WITHSCORES', 'LIMIT', integer(position), 1)
  return tonumber(entry[2])
end

local function decide(state, limit, now, cost)
  local window_ms = limit.window / 1000
  local count = state.count
  -- A log has no entries above the limit, and so no debt.
  local available = max(limit.units - count, 0)
  local function leaves_after(at_ms) return (at_ms + window_ms) * 1000 - now end

  local most = min(limit.units, MAX_WRITTEN)
  local outcome = outcome_of(cost, min(available, most), most)
  local taken = outcome == ALLOWED and cost or 0
  local retry_after, reset_after = 0, 0
  if outcome == DENIED then
    local surplus = count + cost - limit.units
    retry_after = leaves_after(score_at(state, surplus - 1))
  end
  if taken > 0 then
    reset_after = leaves_after(floor_millis(now))
  elseif count > 0 then
    reset_after = leaves_after(score_at(state, count - 1))
  end
  return {
    outcome = outcome,
    current_count = count,
    remaining = available - taken,
    retry_after = retry_after,
    reset_after = reset_after,
    ttl = limit.window,
    delay = 0,
  }
end

-- Writes `units` entries at `at_ms` for the hit with `number`.
local function write(key, at_ms, units, number)
  local score, members = integer(at_ms), {}
  local suffix = NONCE .. '.' .. number
  for unit = 1, units do
    members[#members + 1] = score
    members[#members + 1] = score .. '-' .. suffix .. '.' .. unit
    if #members == 2 * MEMBERS_PER_CALL or unit == units then
      redis.call('ZADD', key, unpack(members))
      members = {}
    end
  end
end

-- Returns the number of a hit in this call, which makes its log entries unique.
local function entry_number(hit, request)
  return hit.position == 1 and request or request .. '.' .. hit.position
end

-- Plans to add `units` entries. Even without any, `save` drops entries that have left the window and
-- extends the life of the log.
local function add(state, limit, now, units, request)
  if units > 0 then
    state.added, state.count = state.added + units, state.count + units
    state.number = state.number or entry_number(limit, request)
  end
  state.expires_at_ms, state.dirty = floor_millis(now) + 2 * limit.window / 1000, true
end

local function commit(state, limit, now, cost, decision, request)
  local is_allowed = decision.outcome == ALLOWED
  if state.wrong_type and not is_allowed then return end
  add(state, limit, now, is_allowed and cost or 0, request)
end

-- Removes the planned entries, from the last to the first, because ranks are those before any removal.
local function apply_removals(state)
  for i = #state.removals, 1, -1 do
    local removal = state.removals[i]
    local last = removal.rank + removal.units - 1
    redis.call('ZREMRANGEBYRANK', state.key, integer(removal.rank), integer(last))
    wrote = true
  end
end

local function save(state)
  local key = state.key
  if state.removals then apply_removals(state) end
  if state.wrong_type or state.was_reset then
    redis.call('DEL', key)
    wrote = true
  end
  -- A refund does not change the time to live.
  if not state.expires_at_ms then return end
  if not state.wrong_type and not state.was_reset then
    redis.call('ZREMRANGEBYSCORE', key, '-inf', state.first:sub(2))
    wrote = true
  end
  if state.added > 0 then
    write(key, state.now_ms, state.added, state.number)
    wrote = true
  end
  redis.call('PEXPIREAT', key, integer(state.expires_at_ms))
end

algorithms.sliding_window_log = {
  load = load, decide = decide, commit = commit, save = save, max_cost = MAX_WRITTEN,
}

--@coupled

local function charge(state, limit, now, cost, request)
  add(state, limit, now, min(cost, max(limit.units - state.count, 0), MAX_WRITTEN), request)
end

local function reset(state)
  state.count, state.stored, state.added, state.removals = 0, 0, 0, false
  state.was_reset, state.dirty = true, true
end

-- Returns the number of entries of a score range in Redis.
local function entries(state, from, to)
  return redis.call('ZCOUNT', state.key, from, to)
end

-- Cancels up to `units` of the entries that are planned to be added, and returns their number.
local function cancel_added(state, units)
  local fewer = min(state.added, units)
  state.added, state.count = state.added - fewer, state.count - fewer
  return fewer
end

-- Plans to remove up to `units` of the entries with these ranks in Redis, from the last to the first,
-- and returns their number. Removals are sorted by rank and do not overlap.
local function plan_removal(state, first, last, units)
  state.removals = state.removals or {}
  local gone = entries(state, '-inf', state.first:sub(2))
  local i, stop, left = #state.removals, last + 1, units
  while left > 0 and stop > first do
    local removal = state.removals[i]
    local removal_end = removal and removal.rank + removal.units or first
    if removal and removal_end >= stop then
      stop, i = min(stop, removal.rank), i - 1
    else
      local removed = min(left, stop - max(removal_end, first))
      local rank = stop - removed
      table.insert(state.removals, i + 1, { rank = rank, position = rank - gone, units = removed })
      stop, left = rank, left - removed
    end
  end
  if first >= gone and first < gone + state.stored then state.count = state.count - (units - left) end
  state.dirty = true
  return units - left
end

local function refund(state, limit, now, taken)
  if state.wrong_type then return end
  local taken_at_ms, units = floor_millis(taken.at), min(taken.cost, MAX_WRITTEN)
  if taken_at_ms == state.now_ms then units = units - cancel_added(state, units) end
  local at_ms = integer(taken_at_ms)
  local matching = state.was_reset and 0 or entries(state, at_ms, at_ms)
  if matching == 0 or units == 0 then return end
  local rank = entries(state, '-inf', '(' .. at_ms)
  plan_removal(state, rank, rank + matching - 1, units)
end

local function credit(state, limit, now, cost)
  if state.wrong_type then return end
  local units = cost - cancel_added(state, cost)
  if units == 0 or state.stored == 0 then return end
  local gone = entries(state, '-inf', state.first:sub(2))
  plan_removal(state, gone, gone + state.stored - 1, units)
end

-- Leaves `used` entries: drops the oldest ones, or adds entries now. If the length of the window
-- changes, all of them are written now.
local function convert(state, from, limit, now, used, request)
  if from.window ~= limit.window then reset(state) end
  if used < state.count then
    local surplus = state.count - used
    local gone = entries(state, '-inf', state.first:sub(2))
    plan_removal(state, gone, gone + surplus - 1, surplus)
  end
  add(state, limit, now, used - state.count, request)
end

local log = algorithms.sliding_window_log
log.refund, log.charge, log.reset, log.credit = refund, charge, reset, credit
log.convert = convert

-- Returns the state by a limit with another window.
function log.load_window(hit, limit)
  return load({ key = hit.key, window = limit.window }, hit.now)
end
