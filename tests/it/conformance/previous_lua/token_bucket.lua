-- Token bucket: `burst` tokens at first, refilled continuously at `limit` per window.
--
-- Twin of src/algorithm/token_bucket.rs. Key: STRING `token tokens part at`: the tokens, the part
-- of the next one in tokens divided by the window's µs, and the time in µs that they are of.

-- The tokens at `now`, the part of the next one, and the time that they are of.
local function refilled(state, limit, now)
  local known = state.tokens and not is_from_the_future(state.at, now, limit)
  if not known then return limit.burst, 0, now end
  local elapsed = min(max(now - state.at, 0), fill_time(limit))
  local part = min(state.part, limit.window - 1)
  local gained
  gained, part = units_in(limit, elapsed, part)
  local tokens = state.tokens + gained
  if tokens >= limit.burst then tokens, part = limit.burst, 0 end
  return tokens, part, max(state.at, now)
end

local function load(hit)
  local tokens, part, at = recall(hit.key, '^token (%d+) (%d+) (%d+)$')
  return { key = hit.key, tokens = tokens, part = part, at = at }
end

local function decide(state, limit, now, cost)
  local tokens, part = refilled(state, limit, now)

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
  }
end

local function commit(state, limit, now, cost, decision)
  if decision.outcome ~= ALLOWED then return end
  local tokens, part, at = refilled(state, limit, now)
  remember(state.key, now, decision.reset_after, 'token %.0f %.0f %.0f', tokens - cost, part, at)
end

local function give_back(state, limit, now, cost, taken)
  if not state.tokens then return end
  local tokens, part, at = refilled(state, limit, now)
  local units, rest = still_out(limit, now, cost, taken)
  tokens, part = tokens + units, part + rest
  if part >= limit.window then tokens, part = tokens + 1, part - limit.window end
  if tokens >= limit.burst then
    redis.call('DEL', state.key)
    return
  end
  local until_full = time_for(limit, limit.burst - tokens, part)
  remember(state.key, now, until_full, 'token %.0f %.0f %.0f', tokens, part, at)
end

algorithms.token_bucket = { load = load, decide = decide, commit = commit, give_back = give_back }
