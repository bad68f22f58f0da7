-- Requests that take what is there, any number of units from `at_least` to their cost, and hits that leave units to
-- others. Twin of crates/core/src/step/what_is_there.rs and of `Entry::decide_beside` in step/entry.rs.

-- Added to the action of a hit that takes what is there, and of one that leaves units to others.
local AT_LEAST, LEAVES_UNITS = 256, 512

-- Reads the fields of such a hit. Returns the index of the last one.
local function parse_budget(hit, values, at)
  if hit.action >= LEAVES_UNITS then
    hit.action, hit.headroom, at = hit.action - LEAVES_UNITS, values[at + 1], at + 1
  end
  if hit.action < AT_LEAST then return at end
  hit.action, hit.at_least, hit.most = hit.action - AT_LEAST, values[at + 1], hit.cost
  return at + 1
end

-- Returns a part, in millionths, of what the grant of a hit allows at once; 0 without a share.
local function part_of(hit, share)
  local rest = hit.burst % 1000000
  local part = rest * (share or 0)
  return (hit.burst - rest) / 1000000 * (share or 0) + (part - part % 1000000) / 1000000
end

-- Decides on this cost, of which so many more must be there. Leaves the hit as it was, also after an error.
local function decide_with(hit, cost, more)
  local algorithm, limit = hit.algorithm, hit
  if algorithm.max_cost then
    -- A log has most units of a request, and counts as one of fewer units does.
    limit, more = setmetatable({ units = hit.units - more }, { __index = hit }), 0
  end
  hit.decision = algorithm.decide(hit.state, limit, hit.now, cost + more)
  if hit.holds then holds.decide_beside(hit, cost + more) end
  return hit.decision
end

-- Decides on a cost beside what is left to others. The numbers are those of the cost alone.
local function decide_beside(hit, cost)
  local whole = decide_with(hit, cost, part_of(hit, hit.headroom))
  local own = decide_with(hit, cost, 0)
  if whole.outcome == ALLOWED then return end
  if own.outcome == ALLOWED then own = decide_with(hit, 0, 0) end
  own.outcome, own.retry_after = whole.outcome, whole.retry_after
end

-- Sets the costs of the first decisions: the fewest units. The hits may be those of the request before.
local function begin()
  for i = 1, count do
    local hit = hits[i]
    hit.only_looks, hit.left = false, false
    hit.cost, hit.whole_cost = hit.at_least or hit.cost, hit.at_least or hit.whole_cost
  end
end

-- Decides again, on the most units that are there, if the fewest are allowed. What is denied is only looked at, so
-- that it counts no attempt.
local function take(refused, decide_again)
  local takes, units = false, nil
  for i = 1, count do
    local hit = hits[i]
    takes = takes or hit.at_least
    if hit.at_least and not hit.fixed then
      local left = hit.algorithm.decide(hit.state, hit, hit.now, 0).remaining
      left = left - part_of(hit, hit.headroom) - (hit.holds and hit.holds.held or 0)
      hit.left = max(min(left, hit.algorithm.max_cost or left), 0)
      -- What is left of more than a reservation may hold is no bound.
      local is_bound = not hit.share or hit.left < max(part_of(hit, hit.share), 1)
      if hit.mode == ENFORCED and is_bound then units = min(units or hit.left, hit.left) end
    end
  end
  for i = 1, takes and count or 0 do
    local hit = hits[i]
    if refused or hit.decision.outcome ~= ALLOWED then
      hit.only_looks = true
    elseif hit.at_least then
      hit.cost = min(hit.most, units or hit.most, hit.mode == SHADOW and hit.left or hit.most)
      hit.whole_cost = hit.cost
      decide_again(hit, {})
    end
  end
end

budgets = { parse = parse_budget, part_of = part_of, decide = decide_beside, begin = begin, take = take }
