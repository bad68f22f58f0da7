-- Sliding window log: the exact log of the last window.
--
-- Twin of src/algorithm/sliding_window_log.rs. Key: ZSET, an entry for each unit: member
-- `{ms}-{suffix}`, score ms. The suffix is the nonce of the service, unique for each script call, the
-- number of the request in it, and that of the unit.

-- Entries that one request may write.
local MAX_WRITTEN = 10000
-- ZADD takes its members on Lua's stack, which is short.
local MEMBERS_PER_CALL = 1000

-- The live range of scores, and how many entries are in it.
local function load(hit, now)
  local key, now_ms = hit.key, floor_millis(now)
  local first, last = '(' .. integer(now_ms - hit.window / 1000), integer(now_ms)
  local count = read('ZCOUNT', key, first, last)
  return { key = key, first = first, last = last, foreign = not count, count = count or 0 }
end

-- Score of the live entry at `position`, from 0 for the oldest.
local function score_at(state, position)
  local entry = redis.call('ZRANGEBYSCORE', state.key, state.first, state.last,
    'WITHSCORES', 'LIMIT', integer(position), 1)
  return tonumber(entry[2])
end

local function decide(state, limit, now, cost)
  local window_ms = limit.window / 1000
  local count = state.count
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

-- Writes `units` entries at `at_ms` for the request with this number.
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

local function commit(state, limit, now, cost, decision, number)
  if state.foreign then
    if decision.outcome ~= ALLOWED then return end
    redis.call('DEL', state.key)
  else
    redis.call('ZREMRANGEBYSCORE', state.key, '-inf', state.first:sub(2))
  end
  if decision.outcome == ALLOWED and cost > 0 then
    write(state.key, floor_millis(now), cost, number)
  end
  redis.call('PEXPIREAT', state.key, integer(floor_millis(now) + 2 * limit.window / 1000))
end

local function give_back(state, limit, now, cost, taken)
  if state.foreign then return end
  local at_ms = integer(floor_millis(taken.at))
  local entries = redis.call('ZCOUNT', state.key, at_ms, at_ms)
  local units = min(entries, cost, MAX_WRITTEN)
  if units == 0 then return end
  local first = redis.call('ZCOUNT', state.key, '-inf', '(' .. at_ms)
  redis.call('ZREMRANGEBYRANK', state.key, integer(first), integer(first + units - 1))
end

algorithms.sliding_window_log = {
  load = load, decide = decide, commit = commit, give_back = give_back,
}
