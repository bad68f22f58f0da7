-- Sliding window log: the exact log of the last window.
--
-- Twin of crates/core/src/algorithm/sliding_window_log.rs. Key: ZSET, an entry for each unit: member
-- `{ms}-{suffix}`, score ms. The suffix is the nonce of the service, unique for each script call, the
-- number of the request in it and of the hit in that, and that of the unit.

-- Entries that one request may write.
local MAX_WRITTEN = 10000
-- ZADD takes its members on Lua's stack, which is short.
local MEMBERS_PER_CALL = 1000

-- The live range of scores, and how many entries are in it.
local function load(hit, now)
  local key, now_ms = hit.key, floor_millis(now)
  local first, last = '(' .. integer(now_ms - hit.window / 1000), integer(now_ms)
  local stored = read('ZCOUNT', key, first, last)
  local count = stored or 0
  return {
    key = key, first = first, last = last, foreign = not stored, now_ms = now_ms,
    count = count, stored = count, added = 0, number = false, expires_at_ms = false, dirty = false,
  }
end

-- Where the live entry at `position` stands in Redis, from 0 for the oldest: behind those before it
-- that are still to be removed.
local function stored_position(state, position)
  for _, hole in ipairs(state.holes) do
    -- Below 0 it is among those that have left the window.
    if hole.position >= 0 and position >= hole.position then position = position + hole.units end
  end
  return position
end

-- Score of the live entry at `position`. Those that are still to be written are the youngest.
local function score_at(state, position)
  if state.holes then position = stored_position(state, position) end
  if position >= state.stored then return state.now_ms end
  local entry = redis.call('ZRANGEBYSCORE', state.key, state.first, state.last,
    'WITHSCORES', 'LIMIT', integer(position), 1)
  return tonumber(entry[2])
end

local function decide(state, limit, now, cost)
  local window_ms = limit.window / 1000
  local count = state.count
  -- Nothing above the limit can be kept: there is no debt.
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

-- Writes `units` entries at `at_ms` for the hit with this number.
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

-- Adds `units` entries. Even a denial has what has left the window dropped, and the log live on.
local function add(state, limit, now, units, number)
  if units > 0 then
    state.added, state.count = state.added + units, state.count + units
    state.number = state.number or number
  end
  state.expires_at_ms, state.dirty = floor_millis(now) + 2 * limit.window / 1000, true
end

local function commit(state, limit, now, cost, decision, number)
  local is_allowed = decision.outcome == ALLOWED
  if state.foreign and not is_allowed then return end
  add(state, limit, now, is_allowed and cost or 0, number)
end

-- Removes what was refunded, the youngest first: ranks are those before anything is removed.
local function remove_holes(state)
  for i = #state.holes, 1, -1 do
    local hole = state.holes[i]
    local last = hole.rank + hole.units - 1
    redis.call('ZREMRANGEBYRANK', state.key, integer(hole.rank), integer(last))
    wrote = true
  end
end

local function save(state)
  local key = state.key
  if state.holes then remove_holes(state) end
  if state.foreign or state.forgotten then
    redis.call('DEL', key)
    wrote = true
  end
  -- A refund alone leaves the time to live as it is.
  if not state.expires_at_ms then return end
  if not state.foreign and not state.forgotten then
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

local function charge(state, limit, now, cost, number)
  add(state, limit, now, min(cost, max(limit.units - state.count, 0), MAX_WRITTEN), number)
end

local function reset(state)
  state.count, state.stored, state.added, state.holes = 0, 0, 0, false
  state.forgotten, state.dirty = true, true
end

-- Entries of this score range, now in Redis.
local function entries(state, from, to)
  return redis.call('ZCOUNT', state.key, from, to)
end

-- Takes up to `units` off the entries that are still to be written, and returns how many.
local function unwrite(state, units)
  local fewer = min(state.added, units)
  state.added, state.count = state.added - fewer, state.count - fewer
  return fewer
end

-- Has up to `units` of the entries removed that have these ranks in Redis, from the last one down, and
-- returns how many. Holes are in the order of ranks, and no two of them overlap.
local function dig(state, first, last, units)
  state.holes = state.holes or {}
  local gone = entries(state, '-inf', state.first:sub(2))
  local i, stop, left = #state.holes, last + 1, units
  while left > 0 and stop > first do
    local hole = state.holes[i]
    local filled_from = hole and hole.rank + hole.units or first
    if hole and filled_from >= stop then
      stop, i = min(stop, hole.rank), i - 1
    else
      local dug = min(left, stop - max(filled_from, first))
      local rank = stop - dug
      table.insert(state.holes, i + 1, { rank = rank, position = rank - gone, units = dug })
      stop, left = rank, left - dug
    end
  end
  if first >= gone and first < gone + state.stored then state.count = state.count - (units - left) end
  state.dirty = true
  return units - left
end

local function refund(state, limit, now, taken)
  if state.foreign then return end
  local taken_at_ms, units = floor_millis(taken.at), min(taken.cost, MAX_WRITTEN)
  if taken_at_ms == state.now_ms then units = units - unwrite(state, units) end
  local at_ms = integer(taken_at_ms)
  local alike = state.forgotten and 0 or entries(state, at_ms, at_ms)
  if alike == 0 or units == 0 then return end
  local rank = entries(state, '-inf', '(' .. at_ms)
  dig(state, rank, rank + alike - 1, units)
end

local function credit(state, limit, now, cost)
  if state.foreign then return end
  local units = cost - unwrite(state, cost)
  if units == 0 or state.stored == 0 then return end
  local gone = entries(state, '-inf', state.first:sub(2))
  dig(state, gone, gone + state.stored - 1, units)
end

local log = algorithms.sliding_window_log
log.refund, log.charge, log.reset, log.credit = refund, charge, reset, credit
