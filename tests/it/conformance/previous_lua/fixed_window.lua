-- Fixed window: a counter for each window of wall time, aligned to the Unix epoch.
--
-- Twin of src/algorithm/fixed_window.rs. Key: STRING, the count, one key for each window:
-- hit.key belongs to the window with index hit.first_index, the next of KEYS to the next window.

-- The highest count that is told exactly, with room for more.
local MOST = 9007199254740000

-- Counted although it is denied: one more attempt at a window that is full.
local function is_attempt(available, cost)
  return available == 0 and cost == 1
end

-- When a counter that begins at `now` is forgotten, in ms.
local function end_of_life(limit, now)
  return floor_millis(now) + limit.window / 1000
end

-- The key of the window of `now`, if it is among the declared ones.
local function key_of(hit, now)
  local offset = (now - now % hit.window) / hit.window - hit.first_index
  if offset >= 0 and offset < hit.keys then return KEYS[hit.first_key + offset] end
end

-- What a counter that expires in `ttl_ms` says at `now`.
local function live(hit, now, key, count, ttl_ms)
  local endless = ttl_ms < 0
  local expires_at_ms = floor_millis(now - hit.held_for) + ttl_ms
  local ttl = endless and hit.window or (expires_at_ms - floor_millis(now)) * 1000
  return { key = key, live = true, endless = endless, count = count, ttl = ttl }
end

-- The state in Redis; without a key if the window of `now` is not among the declared ones.
local function load(hit, now)
  local key = key_of(hit, now)
  local value = key and read('GET', key)
  -- As Redis writes it: INCRBY takes nothing else.
  local is_count = type(value) == 'string' and (value:find('^[1-9]%d*$') or value == '0')
  local count = is_count and tonumber(value)
  if not count or count > MOST then
    return { key = key, live = false, count = 0, ttl = hit.window }
  end
  return live(hit, now, key, count, redis.call('PTTL', key))
end

local function decide(state, limit, now, cost)
  local window = limit.window
  local available = max(limit.units - state.count, 0)
  local until_end = window - now % window

  local outcome = outcome_of(cost, available, limit.units)
  local taken = outcome == ALLOWED and cost or 0
  local counted = is_attempt(available, cost) and 1 or taken
  return {
    outcome = outcome,
    current_count = state.count + counted,
    remaining = available - taken,
    retry_after = until_end,
    reset_after = until_end,
    ttl = max(state.ttl, 1),
    delay = 0,
  }
end

local function commit(state, limit, now, cost, decision)
  local counted = decision.current_count - state.count
  if counted == 0 then return end
  if state.live then
    redis.call('INCRBY', state.key, integer(counted))
    if state.endless then redis.call('PEXPIREAT', state.key, integer(end_of_life(limit, now))) end
  else
    redis.call('SET', state.key, integer(counted), 'PXAT', integer(end_of_life(limit, now)))
  end
end

-- Decides on one unit and commits that, in fewer commands: it is counted whether it is allowed or an
-- attempt. Answers nothing, and leaves the key as it was, unless that holds a count that expires.
local function take_one(hit, now)
  local key = key_of(hit, now)
  local ttl_ms = key and redis.call('PTTL', key)
  if not key or ttl_ms < 0 then return end
  local counted = redis.pcall('INCRBY', key, '1')
  if type(counted) ~= 'number' then return end
  if counted < 1 or counted > MOST + 1 then
    redis.call('INCRBY', key, '-1')
    return
  end
  return decide(live(hit, now, key, counted - 1, ttl_ms), hit, now, 1)
end

local function give_back(state, limit, now, cost)
  if not state.live then return end
  local count = min(state.count, limit.units) - cost
  if count <= 0 then
    redis.call('DEL', state.key)
    return
  end
  redis.call('SET', state.key, integer(count), 'KEEPTTL')
  if state.endless then
    redis.call('PEXPIREAT', state.key, integer(end_of_life(limit, now)))
  end
end

algorithms.fixed_window = {
  load = load, decide = decide, commit = commit, take_one = take_one, give_back = give_back,
}
