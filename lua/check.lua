-- Executes requests, one after the other. An error of one request does not affect the others.
--
-- KEYS: the keys of the first hit of the first request, then those of its second hit, and so on.
-- Each hit has, in this order:
--   `keys` keys    of the state; the type depends on the algorithm (see its file)
--   1 key          refund and reset only: STRING `reset at`, the time of the last reset in µs. Units
--                  that were taken up to then are not refunded.
--   1 key          refund to a fixed window only: the key of the window in which the units were taken
--   1 key          overridable hits only: HASH with the overrides of the id, see control.lua
--   1 key          hits that keep their limits only: STRING with the limits, see on_change.lua
--   2 keys         hits whose rule holds only: ZSET and HASH of holds, see holds.lua
-- After the keys of its hits, a request with a request id has
--   1 key          STRING, the record of the request id: see idempotency.lua
-- and one for a reservation
--   1 key          STRING, its settlement: see holds.lua
--
-- ARGV[1]  nonce   text, unique for each call: echoed in the reply, and part of log entries
-- ARGV[2]  note    text for readers of MONITOR and the slow log, ignored here
-- ARGV[3]  and following: one request each, as concatenated MessagePack values. (Converting text to a
--          number would take longer than a command on a key.)
--      1   coupling     text: `all_or_nothing` takes units only if no hit refuses the request,
--                       `each_alone` decides each hit independently, in order, `plain` is all or
--                       nothing for the requests that plain.lua can execute, unless units are held
--      2   hits         integer: number of hits that follow
-- then for each hit
--      +1  algorithm    text: a name in `algorithms`
--      +2  keys         integer: number of keys of the state
--      +3  first_index  integer: index of the window of the hit's first key for a fixed window, else 0
--      +4  units        integer: units per window
--      +5  window       integer, µs: length of the window
--      +6  burst        integer: units at once
--      +7  shared_burst  integer: the largest burst of the limits that decide on the same state
--      +8  shared_units  integer: the most units per window of these limits, or 0 if the limit decides
--                       alone
--      +9  cost         integer: units of the action
--      +10 mode         integer: 0 shadow, never refuses the request; 1 enforced, refuses it with a
--                       denial; 2 quota, refuses it if all quotas deny; 3 shadow quota, always allows
--      +11 seen         integer, µs: latest time of a decision on a limit with this window by this
--                       server that the service knows, or 0
--      +12 action       integer: 0 peek, 1 take, 2 report (counts even if too few units are left),
--                       3 refund, 4 credit, 5 reset, 6 set an override, 7 clear overrides; 16 more if
--                       the hit is overridable. Then `units` may be 0 (a ban) or -1 (unlimited).
--                       32 more if it keeps its limits, 64 more if its rule holds, 128 more if its window
--                       is that of a calendar. The cost of a settlement is -1 for what is held.
--      +13 max_debt     integer: most units of debt, or -1 if the limit keeps no debt
--@rare
-- for a hit that leaves units to others: 512 more in its action
--      headroom     integer: part of what its grant allows at once, in millionths
-- for a hit that takes what is there: 256 more in its action; `cost` is the most that it takes
--      at_least     integer: the fewest units that it takes
--@end
-- for a hit whose window is that of a calendar; `window` is then the longest
--      starts_at    integer, µs: the first moment of the window of the hit's key
--      ends_at      integer, µs: the first moment after it
-- for a hit that keeps its limits
--      policy       integer: units in use after a change: 1 keep-used, 2 keep-left, 3 scale, 4 reset
--      revision     integer: that has set the rule, or 0: rules of files have none
-- for a hit whose rule holds
--      max_holds    integer: most holds of the key
--      use          integer: 0 none, 1 holds units, 2 settles them; 4 more if its cost is cut
--      rule         text: encoded name of the rule
--      share        integer, only if its cost is cut: most of what the key allows at once, in millionths
-- for an overridable hit
--      rule         text: encoded name of the rule
--      most_units   integer: most units per window that the algorithm accepts
--      has_burst    integer: 1 if the algorithm has a burst
-- to set an override
--      units        integer: units per window, 0 (a ban) or -1 (unlimited)
--      burst        integer: units at once
--      ttl          integer, µs: time until it ends
--      note         text
-- to clear overrides
--      kind         integer: 0 both, 1 the ban, 2 the other
-- and for a refund
--      +14 taken_at     integer, µs: time of the decision that took the units
--      +15 taken_reset_after  integer, µs: reset_after of that decision
-- and after all hits, for a request with a request id
--      end+1 fingerprint  16 bytes: hash of the request
--      end+2 hits         16 bytes: hash of the keys and algorithms of the hits
--      end+3 call         8 bytes: number of the call
--      end+4 purpose      integer: 0 decide, 1 confirm, 2 undo
--      end+5 ttl          integer, µs: time for which the reply is remembered
-- or for a request for a reservation
--      end+1 use      integer: 0 reserve, 1 extend, 2 settle, 3 also charges what has ended
--      end+2 number   16 bytes: of the reservation
--      end+3 time     integer, µs: to hold units, or to remember the settlement; -1 leaves the end as it is
--      end+4 ends_at  integer, µs: to settle only: the end that was given when the units were reserved
--
-- Reply: a string of concatenated MessagePack values: nonce, time in µs, then for each request one of
--   1   executed; followed by the values of each hit: outcome (0 allowed, 1 denied, 2 impossible),
--       current_count, remaining, then in µs retry_after, reset_after, ttl and delay, then the number of
--       units counted. Of an overridable hit, its record comes last: ends of ban and grant in µs or
--       0, units and burst of the grant, and for all actions but take, report and refund the notes of
--       both.
--       Of a hit whose rule holds, then: units held, number of holds, one more than the units of the
--       reservation or 0 if it has no hold, 1 if holds alone deny it. After the hits of a request for a
--       reservation: 0 nothing is held, 1 its end in µs follows, 2 it is settled: for each hit the name of
--       the rule, and four numbers as in holds.lua, 3 it was reserved before, and its end follows
--   8   the reservation was settled before: number of settlements, then as above
--   9   there is no such reservation
--   10  there is none, and it ended so long ago that its settlement may have been forgotten
--   7   executed, each hit by a plain take of a fixed window: followed by the count and the time to live
--       in µs that each had before, 0 and the window of one that is new, from which the decisions follow; and
--       four zeros each for the record of an overridable hit and the holds of one whose rule holds
--   3   answered by the record of the request id; followed by the call that took the units (8 bytes), the
--       time of the reply in µs, for each hit the time by which it was decided in µs, and the values of
--       each hit as for 1
--   4, 5, 6   not executed: the request id was used for another request, was replayed too often, or was
--       used with other rules
--   0   not executed, because the keys belong to another window than the current one
--   2   failed at a write after others had succeeded, which are not undone; followed by the error text
--   an error text   failed before any write

--@full
-- Added to the use of a hit whose cost is cut to a share of what its grant allows at once.
local CUTS_COST = 4

--@end
-- Reads a request from its values. A hit has all its fields from the start, because growing a table
-- takes as long as a command on a key.
local function parse(values)
  coupling, count = values[1], values[2]
  local at = 2
  for i = 1, count do
    local hit = {
      algorithm = algorithms[values[at + 1]],
      --@hit FIELD = values[at + POSITION],
      position = i, count = 0, ttl = 0, now = 0, frozen_for = 0, least = 0, max_in_use = 0, key = false,
      first_key = 0, state = false, decision = false, taken = false, record = false, before = 0,
      counted = 0, fixed = false,
      --@full
      max_holds = false, use = 0, rule_name = false, ends_key = false, units_key = false, held = 0,
      holds = false, past = false, share = false, whole_cost = 0,
      --@end
    }
    hits[i] = hit
    hit.now = freeze(time, hit.seen, hit.window)
    hit.frozen_for = hit.now - time
    local debt = max(hit.max_debt, 0)
    hit.least, hit.max_in_use = 0 - debt, hit.shared_burst + debt
    at = at + HIT_FIELDS
    --@rare
    if hit.action >= AT_LEAST then
      if not budgets then define('budgets') end
      at = budgets.parse(hit, values, at)
    end
    --@end
    if hit.action >= CALENDAR then
      hit.action, hit.starts_at, hit.ends_at = hit.action - CALENDAR, values[at + 1], values[at + 2]
      at = at + 2
    end
    --@full
    if hit.action >= HOLDS then
      hit.action, hit.max_holds = hit.action - HOLDS, values[at + 1]
      hit.use, hit.rule_name = values[at + 2], values[at + 3]
      at = at + 3
      if hit.use >= CUTS_COST then
        hit.use, hit.share, hit.whole_cost = hit.use - CUTS_COST, values[at + 1], hit.cost
        at = at + 1
      end
    end
    if hit.action >= KEEPS_LIMITS then
      if not on_change then define('on_change') end
      hit.action = hit.action - KEEPS_LIMITS
      at = on_change.parse(hit, values, at)
    end
    --@end
    --@control
    if hit.action >= CONTROLLED then
      if not control then define('control') end
      hit.action = hit.action - CONTROLLED
      at = control.parse(hit, values, at)
    end
    --@end
    if hit.action == REFUND then
      --@refund hit.FIELD = values[at + POSITION]
      hit.taken = { cost = hit.cost, at = hit.taken_at, reset_after = hit.taken_reset_after }
      at = at + REFUND_FIELDS
    end
  end
  --@full
  once, reservation = nil, nil
  local first = type(values[at + 1])
  if first == 'string' then
    if not idempotency then define('idempotency') end
    idempotency.parse(values, at)
  elseif first == 'number' then
    if not holds then define('holds') end
    holds.parse_reservation(values, at)
  end
  --@end
end

-- Assigns the next of KEYS to the hits.
local function assign_keys()
  for i = 1, count do
    local hit = hits[i]
    hit.key = KEYS[next_key]
    hit.first_key = next_key
    next_key = next_key + hit.keys
    if hit.action == REFUND or hit.action == RESET then
      hit.record = KEYS[next_key]
      next_key = next_key + 1
    end
    if hit.action == REFUND and hit.algorithm.keyed_by_window then
      hit.taken_key = KEYS[next_key]
      next_key = next_key + 1
    end
    --@control
    if hit.control then
      hit.control_key = KEYS[next_key]
      next_key = next_key + 1
    end
    --@end
    --@full
    if hit.policy then
      hit.history_key = KEYS[next_key]
      next_key = next_key + 1
    end
    if hit.max_holds then
      hit.ends_key, hit.units_key = KEYS[next_key], KEYS[next_key + 1]
      next_key = next_key + 2
    end
    --@end
  end
  --@full
  if once then
    once.key = KEYS[next_key]
    next_key = next_key + 1
  end
  if reservation then
    reservation.key = KEYS[next_key]
    next_key = next_key + 1
  end
  --@end
end

-- Executes a request. Returns false if its keys belong to another window.
local function execute(request)
  --@full
  local is_plain = coupling == 'plain'
  for i = 1, count do
    local hit = hits[i]
    local key = hit.ends_key
    hit.holds, hit.held = false, key and read('ZCARD', key) or 0
    is_plain = is_plain and hit.held == 0
  end
  if not is_plain then
    if not execute_coupled then define('coupled') end
    return execute_coupled(request)
  end
  --@end
  return execute_plain(request)
end

function append_hits(list, length)
  for i = 1, count do
    local decision, frozen_for = hits[i].decision, hits[i].frozen_for
    --@full
    local first = length
    --@end
    list[length + 1] = decision.outcome
    list[length + 2] = decision.current_count
    list[length + 3] = decision.remaining
    list[length + 4] = decision.retry_after + frozen_for
    list[length + 5] = decision.reset_after + frozen_for
    list[length + 6] = decision.ttl
    list[length + 7] = decision.delay
    list[length + 8] = hits[i].counted
    length = length + 8
    --@control
    if hits[i].control then length = control.append(hits[i], list, length) end
    --@end
    --@full
    if hits[i].holds then
      if not hits[i].fixed then list[first + 3] = list[first + 3] - hits[i].holds.held end
      length = holds.append(hits[i], list, length)
    elseif hits[i].max_holds then
      list[length + 1], list[length + 2], list[length + 3], list[length + 4] = 0, 0, 0, 0
      length = length + 4
    end
    --@end
  end
  return length
end

-- Appends the reply to the request.
local function append_reply()
  if once and once.answer then
    for i = 1, #once.answer do reply[length + i] = once.answer[i] end
    length = length + #once.answer
    return
  end
  --@full
  if reservation and reservation.gone then
    length = length + 1
    reply[length] = reservation.gone
    return
  elseif reservation and reservation.replayed then
    local settled = reservation.replayed
    reply[length + 1], reply[length + 2] = 8, #settled / 5
    for i = 1, #settled do reply[length + 2 + i] = settled[i] end
    length = length + 2 + #settled
    return
  end
  --@end
  reply[length + 1] = 1
  length = append_hits(reply, length + 1)
  --@full
  if reservation then length = holds.append_reservation(reply, length) end
  --@end
end

-- The request that was parsed last. Requests that differ in their keys alone are parsed once.
local last_argument

-- Executes a request. `failure` is the error of `take`, which is that of the request.
return function(request, values, failure)
  local argument = ARGV[request]
  if argument ~= last_argument then parse(values) end
  -- A request with a request id may change its hits.
  last_argument = not once and not reservation and argument
  assign_keys()
  wrote = false
  local ok, result = not failure, failure
  if ok then ok, result = pcall(execute, request) end
  if ok and result then return append_reply() end
  length = length + 1
  reply[length] = 0
  if ok then return end
  if once then idempotency.forget() end
  if wrote then
    reply[length] = 2
    length = length + 1
  end
  reply[length] = type(result) == 'table' and result.err or tostring(result)
end

--@rest

-- Most values in one call of `pack`: Lua's stack, which holds them twice, is small.
local VALUES_PER_PACK = 3000

local values, execute
for request = 3, #ARGV do
  local argument = ARGV[request]
  if request == 3 or argument ~= ARGV[request - 1] then values = { cmsgpack.unpack(argument) } end
  local ok, result = true, false
  if take then ok, result = pcall(take, values) end
  if not ok or not result then
    execute = execute or rest()
    execute(request, values, not ok and result)
  end
end
if length <= VALUES_PER_PACK then return cmsgpack.pack(unpack(reply)) end
local packed = {}
for first = 1, length, VALUES_PER_PACK do
  packed[#packed + 1] = cmsgpack.pack(unpack(reply, first, min(first + VALUES_PER_PACK - 1, length)))
end
return table.concat(packed)
