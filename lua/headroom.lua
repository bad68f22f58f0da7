-- Hits that leave units to others: they are decided on so many more than their cost. Twin of
-- `Entry::decide_beside` in crates/core/src/step/entry.rs.

-- Added to the action of a hit that leaves units to others.
local LEAVES_UNITS = 512

-- Reads the field of a hit that leaves units to others. Returns its index.
local function parse_share(hit, values, at)
  hit.action, hit.headroom = hit.action - LEAVES_UNITS, values[at + 1]
  return at + 1
end

-- Returns the units that a hit leaves to others.
local function units_left(hit)
  local rest = hit.burst % 1000000
  local part = rest * hit.headroom
  return (hit.burst - rest) / 1000000 * hit.headroom + (part - part % 1000000) / 1000000
end

-- Decides on this cost, of which so many more must be there. Leaves the hit as it was, also after an error.
local function decide_with(hit, cost, more)
  local algorithm, limit = hit.algorithm, hit
  if more > 0 and algorithm.max_cost then
    -- A log has most units of a request, and counts as one of fewer units does.
    limit, more = setmetatable({ units = hit.units - more }, { __index = hit }), 0
  end
  hit.decision = algorithm.decide(hit.state, limit, hit.now, cost + more)
  if hit.holds then holds.decide_beside(hit, cost + more) end
  return hit.decision
end

-- Decides on a cost. The numbers are those of the cost alone.
local function decide_beside(hit, cost)
  local whole = decide_with(hit, cost, units_left(hit))
  local own = decide_with(hit, cost, 0)
  if whole.outcome == ALLOWED then return end
  if own.outcome == ALLOWED then own = decide_with(hit, 0, 0) end
  own.outcome, own.retry_after = whole.outcome, whole.retry_after
end

headroom = { parse = parse_share, units = units_left, decide = decide_beside }
