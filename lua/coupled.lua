-- Executes requests that are not plain: reports, refunds, credits, resets, changes of overrides, several
-- hits of one key, and those that each decide alone. Twin of crates/core/src/step.rs.
--
-- All states are read and decided on first, which changes tables only. Then each changed state is
-- written once, and the records of resets last. If a write fails, those before it are not undone;
-- check.lua reports that.

-- Times of resets in µs by the key of their record, for the refunds and resets of the request.
local reset_at

-- Loads the states of all hits. Hits of the same key share one state. Returns false if a key belongs
-- to another window.
local function load_all()
  local loaded = {}
  local holds_by_key = {}
  reset_at = {}
  local function share(state)
    if state and not loaded[state.key] then loaded[state.key] = state end
    return state and loaded[state.key]
  end
  for i = 1, count do
    local hit = hits[i]
    local algorithm = hit.algorithm
    local state = algorithm.load(hit, hit.now)
    if not state.key then return false end
    hit.state, hit.past = share(state), false
    if hit.max_holds and (hit.held > 0 or reservation) then
      if not holds then define('holds') end
      holds.load(hit, hit.held, holds_by_key)
    end
    if hit.taken then
      hit.past = algorithm.load_past and share(algorithm.load_past(hit))
      reset_at[hit.record] = load_numbers(hit.record, '^reset (%d+)$')
    end
  end
  return true
end

-- Counts a cost that was incurred already. Allowed if enough units were left. The numbers are those
-- of the state afterwards, the wait is that of one unit.
local function report(hit, request)
  local most = hit.algorithm.max_cost or hit.cost
  decide(hit, 0)
  local left = hit.decision.remaining
  hit.algorithm.charge(hit.state, hit, hit.now, hit.cost, request)
  decide(hit, 1)
  with_current_numbers(hit)
  hit.counted = left - hit.decision.remaining
  if hit.holds then left = left - hit.holds.held end
  if hit.cost <= min(left, most) then
    hit.decision.outcome, hit.decision.retry_after = ALLOWED, 0
  elseif hit.decision.outcome == ALLOWED then
    -- The cost exceeded the maximum, and units are left.
    hit.decision.outcome = IMPOSSIBLE
  end
end

-- Takes the cost, or the remaining units if the cost is denied.
local function take_remaining(hit, request)
  decide(hit, hit.cost)
  take(hit, hit.cost, request)
  local rest = min(hit.decision.remaining, hit.algorithm.max_cost or hit.cost)
  if hit.holds then rest = rest - hit.holds.held end
  if hit.decision.outcome == ALLOWED or rest <= 0 then return end
  decide(hit, rest)
  take(hit, rest, request)
  decide(hit, hit.cost)
end

-- Returns the time after which nothing that was taken can be refunded, in µs.
local function spent_after(hit)
  if not hit.algorithm.pays_back then return 2 * hit.window end
  return max(2 * hit.window, fill_time(hit))
end

-- Executes a refund, a credit or a reset.
local function return_units(hit)
  local algorithm, state = hit.algorithm, hit.state
  if hit.control and not hit.counts and hit.action ~= RESET then return end
  if hit.action == RESET then
    algorithm.reset(state, hit)
    if hit.holds then holds.drop(hit) end
    reset_at[hit.record] = hit.now
  elseif hit.cost == 0 then
    return
  elseif hit.action == CREDIT then
    algorithm.credit(state, hit, hit.now, hit.cost)
  elseif hit.policy and on_change.is_settled(hit) then
    return
  elseif hit.taken.at > (reset_at[hit.record] or -1) then
    algorithm.refund(hit.past or state, hit, hit.now, hit.taken)
  end
end

-- Executes one hit independently of the others.
local function execute_alone(hit, request)
  if hit.action >= REFUND then
    return_units(hit)
    decide(hit, 0)
  elseif hit.cost == 0 then
    decide(hit, 0)
  elseif hit.fixed then
    local fixed = hit.fixed
    if hit.action == REPORT and (hit.counts or hit.own_units > 0) then
      -- Counted by the limit beneath.
      hit.fixed = false
      report(hit, request)
      hit.fixed = fixed
    end
    decide(hit, 0)
  elseif hit.action == REPORT then
    report(hit, request)
  elseif hit.action == TAKE then
    take_remaining(hit, request)
  else
    decide(hit, hit.cost)
    with_current_numbers(hit)
  end
end

-- Cuts the cost of a hit to its share of what its grant allows at once, at least one unit.
local function cut_cost(hit)
  hit.cost = hit.whole_cost
  if hit.fixed then return end
  local rest = hit.burst % 1000000
  local part = rest * hit.share
  part = (hit.burst - rest) / 1000000 * hit.share + (part - part % 1000000) / 1000000
  hit.cost = min(hit.cost, max(part, 1))
end

-- Decides a hit for its cost plus the costs of the earlier takes from the same key.
local function decide_sum(hit, sums)
  if hit.share then cut_cost(hit) end
  if hit.use == HOLD then return holds.decide(hit) end
  local before = sums[hit.key] or 0
  hit.before = before
  decide(hit, before + hit.cost)
  if hit.action == TAKE then sums[hit.key] = before + hit.cost end
end

-- Executes reports first, then takes if no hit refuses the request, then refunds, credits and resets.
local function all_or_nothing(request)
  local sums = {}
  --@rare
  if budgets then budgets.begin() end
  --@end
  for i = 1, count do
    if hits[i].action == REPORT then execute_alone(hits[i], request) end
  end
  for i = 1, count do
    if hits[i].action < REPORT then decide_sum(hits[i], sums) end
  end
  local refused = is_refused()
  --@rare
  if budgets then budgets.take(refused, decide_sum) end
  --@end
  for i = 1, count do
    if hits[i].action < REPORT then apply(hits[i], refused, request) end
  end
  for i = 1, count do
    local hit = hits[i]
    if hit.action == RESET or hit.action >= REFUND and not refused then return_units(hit) end
  end
  for i = 1, count do
    if hits[i].action >= REFUND then decide(hits[i], 0) end
  end
end

-- Writes each state that has changed, then the records of resets.
local function save_all()
  if reservation then holds.save_settlement() end
  for i = 1, count do
    if hits[i].holds then holds.save(hits[i]) end
  end
  for i = 1, count do
    local hit = hits[i]
    save(hit.state, hit.algorithm)
    save(hit.past, hit.algorithm)
  end
  for i = 1, count do
    local hit = hits[i]
    if hit.action == RESET then
      save_numbers(hit.record, hit.now, spent_after(hit), 'reset %d', hit.now)
      wrote = true
    end
  end
  if control then control.save() end
  if on_change then on_change.save() end
end

-- Executes a request. Returns false if its keys belong to another window.
function execute_coupled(request)
  for i = 1, count do hits[i].counted = 0 end
  if once and idempotency.recall() then return true end
  if reservation and holds.recall() then return true end
  if control then control.begin() end
  if on_change then on_change.begin() end
  if not load_all() then return false end
  if coupling == 'each_alone' then
    for i = 1, count do
      if hits[i].control then control.execute_alone(hits[i]) end
      if hits[i].policy then on_change.adopt(hits[i], request) end
      execute_alone(hits[i], request)
    end
  else
    if control then control.execute_all() end
    for i = 1, count do
      if hits[i].policy then on_change.adopt(hits[i], request) end
    end
    if reservation then
      holds.execute_reserved(request, all_or_nothing, report)
    else
      all_or_nothing(request)
    end
  end
  if once then idempotency.remember() end
  save_all()
  return true
end
