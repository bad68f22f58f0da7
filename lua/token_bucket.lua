-- Token bucket: starts with `burst` tokens and is refilled continuously at `limit` per window.
--
-- Twin of crates/core/src/algorithm/token_bucket.rs.
--
-- Key 1: STRING `token tokens part at`, all integers in decimal: the tokens, the fraction of the next
-- one in 1 / window µs of a token, and the time of the last change in µs.
-- Key 2, only for limits that keep debt and for rules that set `on-change`: STRING `debt tokens part
-- at`: the tokens of debt. Valid only while key 1 has 0 tokens with the same part and time. Releases
-- without debt read key 1 alone, as an empty bucket.

-- Returns the tokens, the fraction of the next one, and the time to which they refer: `now`, or later
-- if the state is from later.
local function refilled(state, limit, now)
  local known = state.tokens and not is_from_the_future(state.at, now, limit)
  if not known then return limit.burst, 0, now end
  local elapsed = min(max(now - state.at, 0), fill_time(limit))
  local part = min(state.part, limit.window - 1)
  local gained
  gained, part = units_in(limit, elapsed, part)
  local tokens = max(state.tokens, limit.least) + gained
  if tokens >= limit.burst then tokens, part = limit.burst, 0 end
  return tokens, part, max(state.at, now)
end

local function load(hit)
  local tokens, part, at = load_numbers(hit.key, '^token (%d+) (%d+) (%d+)$')
  local state = {
    key = hit.key, tokens = tokens, part = part, at = at, now = 0, until_full = 0, dirty = false,
    owes = false, debt_key = hit.keys > 1 and KEYS[hit.first_key + 1],
  }
  -- Debt counts beside no tokens alone.
  if tokens ~= 0 or not state.debt_key then return state end
  local owed, owed_part, owed_at = load_numbers(state.debt_key, '^debt (%d+) (%d+) (%d+)$')
  if owed_part == part and owed_at == at then
    state.tokens, state.owes = -owed, true
  end
  return state
end

local function decide(state, limit, now, cost)
  local tokens, part, at = refilled(state, limit, now)

  local outcome = outcome_of(cost, tokens, limit.burst)
  local retry_after = outcome == DENIED and time_for(limit, cost - tokens, part) or 0
  local taken = outcome == ALLOWED and cost or 0
  local in_use = limit.burst - (tokens - taken)
  local until_full = time_for(limit, in_use, part)
  return {
    outcome = outcome,
    current_count = in_use,
    remaining = tokens - taken,
    retry_after = retry_after,
    reset_after = until_full,
    ttl = until_full,
    delay = 0,
    part = part,
    at = at,
  }
end

-- Sets the tokens. The state matters until the burst is full, and the largest one of the limits that
-- decide on it would be at their largest rate.
local function set_state(state, limit, now, tokens, part, at)
  state.tokens, state.part, state.at, state.now, state.dirty = tokens, part, at, now, true
  state.until_full = time_for(limit, limit.burst - tokens, part)
  if limit.shared_units > 0 then
    local missing = limit.shared_burst - tokens
    local whole, rest = divide(limit.window, missing, 0, limit.shared_units)
    state.until_full = max(state.until_full, whole + (rest > 0 and 1 or 0))
  end
end

local function commit(state, limit, now, cost, decision)
  if decision.outcome ~= ALLOWED then return end
  set_state(state, limit, now, decision.remaining, decision.part, decision.at)
end

local function save(state)
  local key, now, until_full, tokens = state.key, state.now, state.until_full, state.tokens
  if tokens then
    save_numbers(key, now, until_full, 'token %d %d %d', max(tokens, 0), state.part, state.at)
  else
    redis.call('DEL', key)
  end
  wrote = true
  if tokens and tokens < 0 then
    save_numbers(state.debt_key, now, until_full, 'debt %d %d %d', -tokens, state.part, state.at)
  elseif state.owes then
    redis.call('DEL', state.debt_key)
  end
end

algorithms.token_bucket = {
  load = load, decide = decide, commit = commit, save = save, pays_back = true,
}

--@coupled

local function reset(state)
  state.tokens, state.dirty = nil, true
end

-- Sets the tokens to at most `burst`.
local function set_or_reset(state, limit, now, tokens, part, at)
  if tokens >= limit.burst then tokens, part = limit.burst, 0 end
  if tokens == limit.shared_burst then return reset(state) end
  set_state(state, limit, now, tokens, part, at)
end

local function refund(state, limit, now, taken)
  if not state.tokens then return end
  local tokens, part, at = refilled(state, limit, now)
  local units, rest = outstanding(limit, now, taken)
  tokens, part = tokens + units, part + rest
  if part >= limit.window then tokens, part = tokens + 1, part - limit.window end
  set_or_reset(state, limit, now, tokens, part, at)
end

local function charge(state, limit, now, cost)
  local tokens, part, at = refilled(state, limit, now)
  tokens = tokens - cost
  if tokens < limit.least then tokens, part = limit.least, 0 end
  set_state(state, limit, now, tokens, part, at)
end

local function credit(state, limit, now, cost)
  local reset_after = decide(state, limit, now, 0).reset_after
  refund(state, limit, now, { cost = cost, at = now, reset_after = reset_after })
end

-- Leaves as many tokens, up to the burst.
local function carry(state, from, limit, now)
  local tokens, part, at = refilled(state, from, now)
  tokens, part = max(tokens, limit.least), (part_after(part, from, limit))
  set_or_reset(state, limit, now, tokens, part, at)
end

-- Leaves all tokens but `used`.
local function convert(state, from, limit, now, used)
  local _, _, at = refilled(state, from, now)
  set_state(state, limit, now, limit.burst - used, 0, at)
end

local bucket = algorithms.token_bucket
bucket.refund, bucket.charge, bucket.reset, bucket.credit = refund, charge, reset, credit
bucket.convert, bucket.carry = convert, carry
