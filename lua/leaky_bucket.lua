-- Leaky bucket as a meter: the level drains at `limit` per window and must not exceed `burst`.
--
-- Twin of crates/core/src/algorithm/leaky_bucket.rs.
--
-- Key: STRING `leaky level part at`, all integers in decimal: the level in units, the fraction of its
-- topmost unit that has drained in 1 / window µs of a unit, and the time of the last change in µs.

-- Returns the level, the fraction of its topmost unit that has drained, and the time to which they
-- refer: `now`, or later if the state is from later.
local function leaked(state, limit, now)
  local known = state.level and not is_from_the_future(state.at, now, limit)
  if not known then return 0, 0, now end
  local elapsed = min(max(now - state.at, 0), fill_time(limit))
  local part = min(state.part, limit.window - 1)
  local gone
  gone, part = units_in(limit, elapsed, part)
  local level = max(min(state.level, limit.max_in_use) - gone, 0)
  if level == 0 then part = 0 end
  return level, part, max(state.at, now)
end

local function load(hit)
  local level, part, at = load_numbers(hit.key, '^leaky (%d+) (%d+) (%d+)$')
  return {
    key = hit.key, level = level, part = part, at = at, now = 0, until_empty = 0, dirty = false,
  }
end

local function decide(state, limit, now, cost)
  local level, part, at = leaked(state, limit, now)
  local room = max(limit.burst - level, limit.least)

  local outcome = outcome_of(cost, room, limit.burst)
  local retry_after = outcome == DENIED and time_for(limit, level + cost - limit.burst, part) or 0
  local taken = outcome == ALLOWED and cost or 0
  local until_empty = time_for(limit, level + taken, part)
  return {
    outcome = outcome,
    current_count = level + taken,
    remaining = room - taken,
    retry_after = retry_after,
    reset_after = until_empty,
    ttl = until_empty,
    delay = time_for(limit, level, part),
    part = part,
    at = at,
  }
end

-- Sets the level.
local function set_state(state, limit, now, level, part, at)
  state.level, state.part, state.at, state.now, state.dirty = level, part, at, now, true
  state.until_empty = time_for(limit, level, part)
end

local function commit(state, limit, now, cost, decision)
  if decision.outcome ~= ALLOWED then return end
  set_state(state, limit, now, decision.current_count, decision.part, decision.at)
end

local function save(state)
  if not state.level then
    redis.call('DEL', state.key)
    return
  end
  save_numbers(state.key, state.now, state.until_empty, 'leaky %d %d %d',
    state.level, state.part, state.at)
end

algorithms.leaky_bucket = {
  load = load, decide = decide, commit = commit, save = save, pays_back = true,
}

--@coupled

local function reset(state)
  state.level, state.dirty = nil, true
end

local function refund(state, limit, now, taken)
  if not state.level then return end
  local level, part, at = leaked(state, limit, now)
  local units, rest = outstanding(limit, now, taken)
  level, part = level - units, part + rest
  if part >= limit.window then level, part = level - 1, part - limit.window end
  if level <= 0 then return reset(state) end
  set_state(state, limit, now, level, part, at)
end

local function charge(state, limit, now, cost)
  local level, part, at = leaked(state, limit, now)
  level = level + cost
  if level > limit.max_in_use then level, part = limit.max_in_use, 0 end
  set_state(state, limit, now, level, part, at)
end

local function credit(state, limit, now, cost)
  local reset_after = decide(state, limit, now, 0).reset_after
  refund(state, limit, now, { cost = cost, at = now, reset_after = reset_after })
end

-- Leaves as much room, up to the burst.
local function carry(state, from, limit, now)
  local level, part, at = leaked(state, from, now)
  level, part = level + limit.burst - from.burst, (part_after(part, from, limit))
  if level > limit.max_in_use then level, part = limit.max_in_use, 0 end
  if level <= 0 then return reset(state) end
  set_state(state, limit, now, level, part, at)
end

-- Sets the level to `used` units.
local function convert(state, from, limit, now, used)
  local _, _, at = leaked(state, from, now)
  set_state(state, limit, now, used, 0, at)
end

local bucket = algorithms.leaky_bucket
bucket.refund, bucket.charge, bucket.reset, bucket.credit = refund, charge, reset, credit
bucket.convert, bucket.carry = convert, carry
