-- Requests that take what is there: any number of units from `at_least` to their cost. Twin of
-- crates/core/src/step/what_is_there.rs.
--
-- All hits are decided on the fewest units first. If they are allowed, those that take the cost of the request
-- are decided again, on the most units that each enforced one of them has.

-- Added to the action of a hit that takes what is there.
local AT_LEAST = 256

-- Reads the field of a hit that takes what is there. Returns its index.
local function parse_least(hit, values, at)
  hit.action, hit.at_least, hit.most = hit.action - AT_LEAST, values[at + 1], hit.cost
  return at + 1
end

-- Cuts the cost of a hit to its share, by a function of coupled.lua.
local cut_cost

local function set_cost(hit, units)
  hit.cost, hit.whole_cost = units, units
  if hit.share then cut_cost(hit) end
end

-- Sets the costs of the first decisions. The hits may be those of the request before.
local function begin(cut)
  cut_cost = cut
  for i = 1, count do
    local hit = hits[i]
    hit.only_looks = false
    if hit.at_least then set_cost(hit, hit.at_least) end
  end
end

-- Returns the most units that a hit may take now.
local function left_of(hit)
  local left = hit.algorithm.decide(hit.state, hit, hit.now, 0).remaining
  if hit.holds then left = left - hit.holds.held end
  if hit.headroom then left = left - headroom.units(hit) end
  return max(min(left, hit.algorithm.max_cost or left), 0)
end

-- Returns the most units that the enforced hits leave to the request.
local function units_left()
  local units
  for i = 1, count do
    local hit = hits[i]
    if hit.at_least and hit.mode == ENFORCED and not hit.fixed then
      local left = left_of(hit)
      local is_bound = true
      if hit.share then
        -- What is left of more than a reservation may hold is no bound.
        set_cost(hit, hit.burst)
        is_bound = left < hit.cost
      end
      if is_bound then units = min(units or left, left) end
    end
  end
  return units
end

-- Decides again, on the most units that are there, if the fewest are allowed. What is denied is only looked at,
-- so that it counts no attempt.
local function take(refused, decide_again)
  local takes = false
  for i = 1, count do takes = takes or hits[i].at_least end
  if not takes then return end
  local units = not refused and units_left()
  for i = 1, count do
    local hit = hits[i]
    if refused or hit.decision.outcome ~= ALLOWED then
      hit.only_looks = true
    elseif hit.at_least then
      local most = min(hit.most, units or hit.most)
      if hit.mode == SHADOW and not hit.fixed then most = min(most, left_of(hit)) end
      set_cost(hit, most)
      decide_again(hit, {})
    end
  end
end

what_is_there = { parse = parse_least, begin = begin, take = take }
