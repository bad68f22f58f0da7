-- Slots: bounds work in flight. The state of a key is its holds alone; see holds.lua.
--
-- Twin of crates/core/src/algorithm/concurrency.rs.

local function load(hit)
  return { key = hit.key, dirty = false }
end

-- Decides on slots, all of which are free but for those that are held.
local function decide(state, limit, now, cost)
  local outcome = outcome_of(cost, limit.units, limit.units)
  local taken = outcome == ALLOWED and cost or 0
  return {
    outcome = outcome, current_count = taken, remaining = limit.units - taken,
    retry_after = 0, reset_after = 0, ttl = 0, delay = 0,
  }
end

local function nothing() end

algorithms.concurrency = { load = load, decide = decide, commit = nothing, save = nothing }

--@coupled

local concurrency = algorithms.concurrency
concurrency.refund, concurrency.charge, concurrency.reset = nothing, nothing, nothing
concurrency.credit, concurrency.convert, concurrency.carry = nothing, nothing, nothing
