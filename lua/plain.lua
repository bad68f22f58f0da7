-- Executes plain requests: all or nothing over hits that take or peek, each of another key, by limits
-- that keep no earlier limits, and debt only if their rule holds. coupled.lua takes the same steps for other
-- requests, and for these while units are held.
-- Twin of crates/core/src/step.rs.
--
-- All states are read and decided on first, which changes tables only. Then each changed state is
-- written once. If a write fails, those before it are not undone; check.lua reports that.

-- Modes of hits.
local SHADOW, ENFORCED, QUOTA, SHADOW_QUOTA = 0, 1, 2, 3

--@full
-- What a hit does with a reservation: it holds units.
local HOLD = 1
--@end

-- Decides on `cost` units.
local function decide(hit, cost)
  --@control
  if hit.fixed then
    hit.decision = hit.fixed
    if control.shows_count(hit) then control.show_count(hit, hit.state) end
    return
  end
  --@end
  --@rare
  if hit.headroom and cost > 0 then return budgets.decide(hit, cost) end
  --@end
  hit.decision = hit.algorithm.decide(hit.state, hit, hit.now, cost)
  --@full
  if hit.holds then holds.decide_beside(hit, cost) end
  --@end
end

-- Replaces the numbers of the decision by those of the current state, and keeps the outcome.
local function with_current_numbers(hit)
  local outcome, retry_after = hit.decision.outcome, hit.decision.retry_after
  decide(hit, 0)
  hit.decision.outcome, hit.decision.retry_after = outcome, retry_after
end

-- Commits the decision on `cost`.
local function take(hit, cost, request)
  hit.algorithm.commit(hit.state, hit, hit.now, cost, hit.decision, request)
  if hit.decision.outcome == ALLOWED then hit.counted = cost end
end

-- Returns true if an enforced hit refuses the request, or all quotas do. Twin of `Mode::refuse`, and the
-- only place in Lua that decides this.
local function is_refused()
  local refused, quota_allows = false, nil
  for i = 1, count do
    local hit = hits[i]
    local allows = hit.action >= REFUND or hit.decision.outcome == ALLOWED
    local mode = hit.mode
    --@control
    -- An unlimited hit neither refuses the request nor lets it pass as a quota.
    if hit.is_unlimited then mode = SHADOW end
    --@end
    if mode == QUOTA then
      quota_allows = quota_allows or allows
    elseif mode == SHADOW_QUOTA then
      quota_allows = true
    elseif mode == ENFORCED and not allows then
      refused = true
    end
  end
  return refused or quota_allows == false
end

-- Takes the cost if the decision allows it and the request is not refused. A denial is committed too,
-- because it may change the state.
local function apply(hit, refused, request)
  --@full
  if hit.use == HOLD then return holds.apply(hit, refused) end
  --@end
  --@control
  if hit.fixed then return end
  --@end
  --@rare
  if hit.only_looks then return with_current_numbers(hit) end
  --@end
  local allows = hit.decision.outcome == ALLOWED
  if hit.action == TAKE and hit.cost > 0 and not (refused and allows) then
    -- The state has the units of the earlier hits by now.
    if hit.before > 0 then
      if allows then decide(hit, hit.cost) else with_current_numbers(hit) end
    end
    take(hit, hit.cost, request)
  elseif hit.before > 0 or hit.cost > 0 then
    with_current_numbers(hit)
  end
end

local function save(state, algorithm)
  if not state or not state.dirty then return end
  state.dirty = false
  algorithm.save(state)
  wrote = true
end

-- Executes a plain request. Returns false if its keys belong to another window.
local function execute_plain(request)
  for i = 1, count do
    local hit = hits[i]
    hit.counted, hit.state = 0, false
    --@control
    if hit.control then control.apply(hit, control.load(hit)) end
    --@end
    if not hit.fixed then
      hit.state = hit.algorithm.load(hit, hit.now)
      if not hit.state.key then return false end
    end
    decide(hit, hit.cost)
  end
  local refused = is_refused()
  for i = 1, count do apply(hits[i], refused, request) end
  for i = 1, count do save(hits[i].state, hits[i].algorithm) end
  return true
end
