-- Windows from the first use: those of a fixed window that begin with the first units that a key takes.
--
-- Twin of crates/core/src/algorithm/first_use.rs. In scripts they are an algorithm of their own: their key has no
-- window. Only the scripts for all algorithms have it.
--
-- Key: STRING `window start count length`, all integers in decimal: the start of the window in µs, the count, and
-- the length in µs by which the key lives.

-- Returns the start and the count of the window that runs; else of one that begins now.
local function running(state, limit, now)
  local start = state.start
  if not start or is_from_the_future(start, now, limit) or now >= start + limit.window then return now, 0 end
  return start, state.count
end

local function load(hit)
  local start, count, length = load_numbers(hit.key, '^window (%d+) ([1-9]%d*) ([1-9]%d*)$')
  -- A value that no limit can have written counts as no state.
  if start and (count > MAX_COUNT or length > MAX_WINDOW) then start = nil end
  return { key = hit.key, start = start, count = count, length = length, dirty = false }
end

local function decide(state, limit, now, cost)
  local start, count = running(state, limit, now)
  local available = max(limit.units - count, limit.least)
  local until_end = start + limit.window - now
  local outcome = outcome_of(cost, available, limit.units)
  local taken = outcome == ALLOWED and cost or 0
  local until_whole = count + taken > 0 and until_end or 0
  return {
    outcome = outcome, current_count = count + taken, remaining = available - taken,
    retry_after = until_end, reset_after = until_whole, ttl = until_whole, delay = 0,
  }
end

-- Sets the window. A count of 0 is no window.
local function set_state(state, limit, start, count)
  state.start = count > 0 and start or nil
  state.count, state.length, state.dirty = count, limit.window, true
end

-- Adds to the count. What is there lives to the end by this limit, even if nothing is added.
local function add(state, limit, now, counted)
  local start, count = running(state, limit, now)
  local is_kept = counted == 0 and (count == 0 or state.length == limit.window)
  if not is_kept then set_state(state, limit, start, count + counted) end
end

local function commit(state, limit, now, cost, decision)
  add(state, limit, now, decision.outcome == ALLOWED and cost or 0)
end

local function save(state)
  if not state.start then return redis.call('DEL', state.key) end
  save_numbers(state.key, state.start, state.length, 'window %d %d %d', state.start, state.count, state.length)
end

algorithms.first_use = { load = load, decide = decide, commit = commit, save = save, max_count = MAX_COUNT }

--@coupled

local function reset(state)
  state.start, state.dirty = nil, true
end

local function charge(state, limit, now, cost)
  local _, count = running(state, limit, now)
  add(state, limit, now, min(cost, max(limit.units - limit.least - count, 0)))
end

local function credit(state, limit, now, cost)
  local start, count = running(state, limit, now)
  if count > 0 then set_state(state, limit, start, max(count - cost, 0)) end
end

local function refund(state, limit, now, taken)
  local start = running(state, limit, now)
  if start <= taken.at and taken.at < start + limit.window then credit(state, limit, now, taken.cost) end
end

local function convert(state, from, limit, now, used)
  local start = running(state, from, now)
  set_state(state, limit, start, used)
end

local window = algorithms.first_use
window.refund, window.charge, window.reset, window.credit = refund, charge, reset, credit
window.convert = convert
