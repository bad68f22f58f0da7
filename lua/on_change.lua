-- Limits by which keys were counted, for hits of rules that set `on-change`. Twin of
-- crates/core/src/limit_history.rs, crates/core/src/algorithm/on_change.rs and
-- crates/core/src/step/changed_limit.rs.
--
-- Key: STRING, concatenated MessagePack integers:
--   1   format      FORMAT
--   2   revision    newest one by which the key was counted; 0 for rules of files, which have none
--   3   settled_at  µs: time of the last conversion that did not keep the units in use, or 0
--   4   index       fixed window only, else 0: index of the window that was counted last. Keys of
--                   fixed windows of another length are not declared, so the count is here too.
--   5   count       fixed window only, else 0: count of that window
-- then for each limit, the one that has counted last first:
--       units, burst   units per window, units at once
--       window         µs
--       ends           µs: time from which the limit is forgotten. 0 for the first one, and for that of
--                      the revision, if a hit of an older revision has counted since.

local FORMAT, HEADER, LIMIT_FIELDS, MAX_LIMITS = 1, 5, 4, 4

-- Policies: the units in use after a change.
local KEEP_USED, KEEP_LEFT, SCALE = 1, 2, 3

-- Limits of the request, by their key.
local histories

-- Reads the field of a hit that keeps its limits. Returns its index.
local function parse_policy(hit, values, at)
  hit.policy, hit.revision, hit.history_key = values[at + 1], values[at + 2], false
  return at + 2
end

-- Returns the limits of a hit's key, which hits of one key share.
local function history_of(hit)
  local history = histories[hit.history_key]
  if history then return history end
  history = { revision = 0, limits = {}, settled_at = 0, index = 0, count = 0, is_unsaved = false }
  histories[hit.history_key] = history
  local text = read('GET', hit.history_key)
  if type(text) ~= 'string' then return history end
  local ok, values = pcall(function() return { cmsgpack.unpack(text) } end)
  -- A value of another format counts as none.
  if not ok or values[1] ~= FORMAT then return history end
  history.revision, history.settled_at = values[2], values[3]
  history.index, history.count = values[4], values[5]
  for at = HEADER, #values - LIMIT_FIELDS, LIMIT_FIELDS do
    table.insert(history.limits, {
      units = values[at + 1], burst = values[at + 2], window = values[at + 3], ends = values[at + 4],
    })
  end
  return history
end

-- Returns true if a hit is decided by the limit of its rule. One that an override decides does not
-- touch the limits.
local function decides_by_rule(hit)
  if not hit.policy or hit.fixed then return false end
  return not hit.control or hit.shown.ban == 0 and hit.shown.grant == 0
end

-- What a hit does with a reservation: it settles.
local SETTLES = 2

-- Returns true if the action of a hit may store a state. Twin of `Action::counts`.
local function counts(hit)
  if hit.use == SETTLES then return true end
  return hit.action == RESET or hit.action > 0 and hit.cost > 0
end

local function is_same(limit, hit)
  return limit.units == hit.units and limit.burst == hit.burst and limit.window == hit.window
end

-- Returns the limit that the revision of the history has set.
local function limit_of_revision(history)
  for i = 2, #history.limits do
    if history.limits[i].ends == 0 then return history.limits[i] end
  end
  return history.limits[1]
end

-- Returns true if the state must be converted to the limit of a hit: if its revision is newer, and has
-- another limit. Without revisions: unless the limit was used recently, or too many others were.
local function must_convert(history, hit)
  if history.revision > 0 and hit.revision > 0 then
    return hit.revision > history.revision and not is_same(limit_of_revision(history), hit)
  end
  if is_same(history.limits[1], hit) then return false end
  local recent = 0
  for i = 2, #history.limits do
    local past = history.limits[i]
    if hit.now < past.ends then
      if is_same(past, hit) then return false end
      recent = recent + 1
    end
  end
  return recent + 1 < MAX_LIMITS
end

-- Returns the limit that has counted last and true if the state must be converted, unless it counts by
-- the limit of the hit already.
local function changed_limit(history, hit)
  local latest = history.limits[1]
  if not latest then return end
  local converts = must_convert(history, hit)
  if not converts and is_same(latest, hit) then return end
  -- With debt up to the units per window, if the limit of the hit has any.
  local debt = hit.max_debt < 0 and 0 or latest.units
  local from = {
    units = latest.units, burst = latest.burst, shared_burst = latest.burst, window = latest.window,
    max_debt = hit.max_debt < 0 and -1 or debt, least = 0 - debt, shared_units = hit.shared_units,
  }
  if hit.shared_units > 0 then
    local most = units_in(from, MAX_FILL, 0)
    from.shared_burst = max(latest.burst, min(hit.shared_burst, most))
  end
  from.max_in_use = from.shared_burst + debt
  return from, converts
end

-- Returns the units in use after a change from the limit `from`, of which `used` were in use before.
local function used_after(hit, used, from, converts)
  if used <= 0 then return 0 end
  if not converts then return used end
  local policy, after = hit.policy, 0
  if policy == KEEP_USED then
    -- Counts may be above the limit, buckets not.
    if not hit.algorithm.carry then return used end
    after = used
  elseif policy == KEEP_LEFT then
    after = max(hit.burst + used - from.burst, 0)
  elseif policy == SCALE and max(hit.burst, from.burst) > MAX_UNITS then
    after = used
  elseif policy == SCALE then
    local whole, rest = divide(used, hit.burst, 0, from.burst)
    after = whole + (rest > 0 and 1 or 0)
  end
  return min(after, hit.burst - hit.least)
end

-- Converts the state of a hit, or carries it over as it is: counts stay, and of a bucket units left stay
-- left.
local function convert_state(hit, history, from, converts, request)
  local algorithm, state = hit.algorithm, hit.state
  -- If more is in use than `from` lets anybody take, by another limit on the state, all of it stays.
  if algorithm.carry and hit.shared_units > 0
    and algorithm.decide(state, from, hit.now, 0).current_count > from.burst - from.least then
    return
  end
  local moves_window = algorithm.count_before and from.window ~= hit.window
  if not converts and not moves_window then
    if algorithm.carry then algorithm.carry(state, from, hit, hit.now) end
    return
  end
  local before = state
  if moves_window then
    before = algorithm.count_before(history, from, hit.now)
  elseif algorithm.load_window and from.window ~= hit.window then
    before = algorithm.load_window(hit, from)
  end
  local left = algorithm.decide(before, from, hit.now, 0).remaining
  local used = from.burst - left
  if converts then
    -- Counts stay as they are by the replaced limit, of a bucket the units left. A key of which nothing
    -- was used is full.
    local replaced = limit_of_revision(history)
    if used > 0 and algorithm.carry then used = replaced.burst - left end
    used = used_after(hit, used, replaced, true)
  else
    used = used_after(hit, used, from, false)
  end
  if used == 0 then
    algorithm.reset(state, hit)
  else
    algorithm.convert(state, from, hit, hit.now, used, request)
  end
end

-- Converts the state of a hit. Returns true if it has changed.
local function convert(hit, history, from, converts, request)
  local state = hit.state
  local was_dirty = state.dirty
  state.dirty = false
  convert_state(hit, history, from, converts, request)
  local has_changed = state.dirty
  state.dirty = was_dirty
  return has_changed
end

-- Returns the newest revision after a hit, 0 if it has none.
local function newest_revision(history, hit)
  return hit.revision > 0 and max(history.revision, hit.revision) or 0
end

-- Returns a limit as it is kept.
local function kept(limit)
  return { units = limit.units, burst = limit.burst, window = limit.window, ends = 0 }
end

-- Forgets the limit that ends first, of equal ones the oldest. So the history lives as long as the state
-- of any limit: a window that is forgotten earlier would be found again.
local function forget_one(limits)
  local first
  for i = #limits, 2, -1 do
    if limits[i].ends > 0 and (not first or limits[i].ends < limits[first].ends) then first = i end
  end
  table.remove(limits, first)
end

-- Replaces the latest limit by that of a hit.
local function apply_change(history, hit, from, converts)
  local limits = { kept(hit) }
  if hit.revision > 0 and hit.revision < history.revision then
    local newest = limit_of_revision(history)
    if not is_same(newest, hit) then limits[2] = kept(newest) end
  end
  local longest = max(from.window, fill_time(from), hit.window, fill_time(hit))
  history.limits[1].ends = hit.now + longest
  for _, limit in ipairs(history.limits) do
    if hit.now < limit.ends and not is_same(limit, hit) then limits[#limits + 1] = limit end
  end
  while #limits > MAX_LIMITS do forget_one(limits) end
  history.limits, history.revision = limits, newest_revision(history, hit)
  if converts and hit.policy ~= KEEP_USED then history.settled_at = hit.now end
end

-- Converts the state of a hit if its limit has changed. What a look converts is not saved, unless a
-- later hit of the request counts on it.
local function adopt_limit(hit, request)
  if not decides_by_rule(hit) then return end
  local history = history_of(hit)
  local from, converts = changed_limit(history, hit)
  if from then
    local has_changed = convert(hit, history, from, converts, request)
    history.is_unsaved = history.is_unsaved or has_changed
    apply_change(history, hit, from, converts)
  end
  if counts(hit) and history.is_unsaved then
    hit.state.dirty, history.is_unsaved = true, false
  end
end

-- Returns true if units that a hit refunds were taken before a conversion that did not keep them.
local function is_settled(hit)
  return decides_by_rule(hit) and hit.taken.at <= history_of(hit).settled_at
end

-- Writes the limits of a hit that has counted units, or whose key has limits already. They live as
-- long as the state can make a difference, or one of the limits before.
local function save_limits(hit)
  local history = history_of(hit)
  local limits = history.limits
  if #limits == 0 then
    if hit.counted == 0 then return end
    limits[1] = kept(hit)
  end
  local index, counted = 0, 0
  if hit.algorithm.count_before then
    index, counted = (hit.now - hit.now % hit.window) / hit.window, hit.state.count
  end
  local last = hit.now + max(2 * hit.window, fill_time(hit))
  local values = { FORMAT, newest_revision(history, hit), history.settled_at, index, counted }
  for i, limit in ipairs(limits) do
    local at = #values
    values[at + 1], values[at + 2], values[at + 3] = limit.units, limit.burst, limit.window
    values[at + 4] = limit.ends
    if i > 1 then last = max(last, limit.ends) end
  end
  local expires_at = integer(ceil(last / 1000) + 1000)
  redis.call('SET', hit.history_key, cmsgpack.pack(unpack(values)), 'PXAT', expires_at)
  wrote = true
end

local function save_all_limits()
  for i = 1, count do
    local hit = hits[i]
    if decides_by_rule(hit) and counts(hit) then save_limits(hit) end
  end
end

local function begin()
  histories = {}
end

on_change = {
  parse = parse_policy, begin = begin, adopt = adopt_limit, is_settled = is_settled, save = save_all_limits,
}
