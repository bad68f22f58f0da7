-- Requests of several hits, reports, and what gives back.
--
-- Counts the reports of a request, decides its other hits, then commits only if none refuses: a
-- denied request takes nothing anywhere. Or takes from each hit by itself, in order. Or gives back
-- what an earlier call took, and looks at what is then left.

-- What a denial does to the others: modes of hits. A shadow, 0, does nothing.
local ENFORCED, QUOTA, SHADOW_QUOTA = 1, 2, 3

-- Reads the states of all hits; false if a key is of another window.
local function load_all()
  for i = 1, count do
    local hit = hits[i]
    hit.state = hit.algorithm.load(hit, hit.now)
    if not hit.state.key then return false end
  end
  return true
end

-- Tells entries of a log apart that one call writes: the request and its hit.
local function number_of(request, i)
  return i == 1 and request or request .. '.' .. i
end

-- Decides on `cost` units of the state as it is.
local function decide(hit, cost)
  hit.decision = hit.algorithm.decide(hit.state, hit, hit.now, cost)
end

-- Keeps the outcome; the numbers become those of the state as it stays.
local function as_it_stays(hit)
  local outcome, retry_after = hit.decision.outcome, hit.decision.retry_after
  decide(hit, 0)
  hit.decision.outcome, hit.decision.retry_after = outcome, retry_after
end

-- Counts a cost that has been incurred already. Allows if it fitted; the numbers are those of the
-- state after it, the wait is that of one unit.
local function report(hit, number)
  local most = hit.algorithm.max_cost or hit.cost
  decide(hit, 0)
  local left = hit.decision.remaining
  hit.state = hit.algorithm.charge(hit.state, hit, hit.now, hit.cost, number)
  decide(hit, 1)
  as_it_stays(hit)
  if hit.cost <= min(left, most) then
    hit.decision.outcome, hit.decision.retry_after = ALLOWED, 0
  elseif hit.decision.outcome == ALLOWED then
    -- There is room for what was not counted.
    hit.decision.outcome = IMPOSSIBLE
  end
end

-- Takes the cost, or what is left where that is denied.
local function take_what_is_left(hit, number)
  decide(hit, hit.cost)
  hit.algorithm.commit(hit.state, hit, hit.now, hit.cost, hit.decision, number)
  local rest = min(hit.decision.remaining, hit.algorithm.max_cost or hit.cost)
  if hit.decision.outcome == ALLOWED or rest <= 0 then return end
  hit.state = hit.algorithm.load(hit, hit.now)
  decide(hit, rest)
  hit.algorithm.commit(hit.state, hit, hit.now, rest, hit.decision, number)
  hit.state = hit.algorithm.load(hit, hit.now)
  decide(hit, hit.cost)
end

-- Decides one hit whatever the others say.
local function alone(hit, number)
  if hit.cost == 0 then
    decide(hit, 0)
  elseif hit.action == REPORT then
    report(hit, number)
  elseif hit.action == TAKE then
    take_what_is_left(hit, number)
  else
    decide(hit, hit.cost)
    as_it_stays(hit)
  end
end

-- Each hit by itself, in order. One of a key that was written before reads it again.
local function each_alone(request)
  local written = {}
  for i = 1, count do
    local hit = hits[i]
    if written[hit.key] then hit.state = hit.algorithm.load(hit, hit.now) end
    alone(hit, number_of(request, i))
    written[hit.key] = true
  end
end

-- True if a hit refuses the request, or all quotas do. The one place in Lua that says so.
local function is_refused()
  local refused, quota_allows = false, nil
  for i = 1, count do
    local hit = hits[i]
    local allows = hit.decision.outcome == ALLOWED
    if hit.mode == QUOTA then
      quota_allows = quota_allows or allows
    elseif hit.mode == SHADOW_QUOTA then
      quota_allows = true
    elseif hit.mode == ENFORCED and not allows then
      refused = true
    end
  end
  return refused or quota_allows == false
end

-- Reports first, then all else: each hit for the sum of what is taken of its key up to it. Commits
-- if nothing refuses; a denial may leave a trace all the same.
local function all_or_nothing(request)
  -- By key: was it written, and what is taken of it so far.
  local written, sums = {}, {}
  for i = 1, count do
    local hit = hits[i]
    if hit.action == REPORT then
      if written[hit.key] then hit.state = hit.algorithm.load(hit, hit.now) end
      alone(hit, number_of(request, i))
      written[hit.key] = true
    end
  end
  for i = 1, count do
    local hit = hits[i]
    if hit.action ~= REPORT then
      if written[hit.key] then hit.state = hit.algorithm.load(hit, hit.now) end
      local before = sums[hit.key] or 0
      hit.before = before
      decide(hit, before + hit.cost)
      if hit.action == TAKE then sums[hit.key] = before + hit.cost end
    end
  end
  local refused = is_refused()
  for i = 1, count do
    local hit = hits[i]
    local allows = hit.decision.outcome == ALLOWED
    if hit.action == TAKE and hit.cost > 0 and not (refused and allows) then
      if hit.before > 0 then
        hit.state = hit.algorithm.load(hit, hit.now)
        if allows then decide(hit, hit.cost) else as_it_stays(hit) end
      end
      hit.algorithm.commit(hit.state, hit, hit.now, hit.cost, hit.decision, number_of(request, i))
    elseif hit.action ~= REPORT then
      -- What was committed before of the same key is in the state by now.
      if hit.before > 0 then hit.state = hit.algorithm.load(hit, hit.now) end
      if hit.before > 0 or hit.cost > 0 then as_it_stays(hit) end
    end
  end
end

-- Gives back what was taken, then looks.
local function give_back()
  for i = 1, count do
    local hit = hits[i]
    hit.state = hit.algorithm.load(hit, hit.taken.at)
    if hit.cost > 0 then
      hit.algorithm.give_back(hit.state, hit, hit.now, hit.cost, hit.taken)
    end
  end
  for i = 1, count do
    local hit = hits[i]
    hit.state = hit.algorithm.load(hit, hit.now)
    decide(hit, 0)
  end
end

-- Decides the hits; false if their keys are of another window.
function answer_coupled(request)
  if coupling == 'give_back' then
    give_back()
  elseif not load_all() then
    return false
  elseif coupling == 'each_alone' then
    each_alone(request)
  else
    all_or_nothing(request)
  end
  return true
end
