-- Answers requests, one after the other, each with its hits. An error in one request is its own
-- answer.
--
-- KEYS     the keys of the first hit, then those of the second, ...
-- ARGV[1]  nonce   text, unique for each call; echoed, and in the suffix of log entries
-- ARGV[2]  note    text, of no meaning here
-- ARGV[3]  and on: one request each, as values of MessagePack, one behind the other: reading a
--          number from text takes longer than a command on a key
--      1   coupling     text: `all_or_nothing` takes only if no hit refuses, `each_alone` from each hit
--                       in order
--      2   hits         how many hits follow
-- then for each hit
--      +1  algorithm    text, as in `algorithms`
--      +2  keys         how many KEYS belong to the hit, a record aside
--      +3  first_index  fixed window: index of the window of the hit's first key; else 0
--      +4  units        limit: units per window
--      +5  window       limit: µs
--      +6  burst        limit: units at once
--      +7  cost         units
--      +8  mode         what a denial does to the others: 1 stops them from taking, 0 (a shadow)
--                       nothing, 2 (a quota) stops them if all quotas deny, 3 (a shadow quota)
--                       nothing, and counts as a quota that allows
--      +9  seen         µs: the latest time of this server at which the service saw a decision on
--                       a limit with this window, or 0
--      +10 action       0 decides and takes nothing, 1 takes, 2 reports: counts whatever is left;
--                       3 refunds, 4 credits, 5 resets
--      +11 max_debt     limit: units that may be owed; -1: what is above the limit is no debt
-- and of a refund
--      +12 taken_at     µs: when the cost was taken
--      +13 taken_reset_after  µs: as that decision told
--
-- A refund and a reset have one more key, behind those of the state: STRING `reset at`, the time of
-- the last reset in µs. A refund of what was taken before that does nothing. A refund to a fixed window
-- has one more behind that: the key of the window in which the cost was taken.
--
-- Reply: values of MessagePack, one behind the other: nonce, time in µs, then for each request one
-- of
--   1, and for each hit outcome (0 allowed, 1 denied, 2 impossible), current_count, remaining, then
--      in µs retry_after, reset_after, ttl, delay; then, unless the request is one plain hit, the units
--      that were counted;
--   0: the keys were of another window than the time's, and nothing was written;
--   2 and the text of an error: a write failed, and those before it stand;
--   the text of an error: nothing was written.

local time = clock()
local reply = { NONCE, time }
local length = #reply
-- The next of KEYS that belongs to no hit yet.
local next_key = 1

-- Is the request one hit that takes or looks, of a limit that keeps no debt?
local is_plain = false

-- Reads a request from its values. A hit begins with room for every field: a table that grows costs as
-- much as a command on a key.
local function parse(values)
  coupling, count = values[1], values[2]
  local at = 2
  for i = 1, count do
    local hit = {
      algorithm = algorithms[values[at + 1]],
      --@hit FIELD = values[at + POSITION],
      now = 0, held_for = 0, least = 0, max_in_use = 0, key = false, first_key = 0, state = false,
      decision = false, taken = false, record = false, before = 0, counted = 0,
    }
    hits[i] = hit
    hit.now = hold(time, hit.seen, hit.window)
    hit.held_for = hit.now - time
    local debt = max(hit.max_debt, 0)
    hit.least, hit.max_in_use = 0 - debt, hit.burst + debt
    at = at + HIT_FIELDS
    if hit.action == REFUND then
      --@refund hit.FIELD = values[at + POSITION]
      hit.taken = { cost = hit.cost, at = hit.taken_at, reset_after = hit.taken_reset_after }
      at = at + REFUND_FIELDS
    end
  end
  is_plain = count == 1 and coupling == 'all_or_nothing'
    and hits[1].action < REPORT and hits[1].max_debt < 0
end

-- Gives the hits the next of KEYS.
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
    if hit.action == REFUND and hit.algorithm.load_past then
      hit.taken_key = KEYS[next_key]
      next_key = next_key + 1
    end
  end
end

-- The common case: nothing depends on others, so what is decided is taken. False if the key is of
-- another window.
local function execute_plain(request)
  local hit = hits[1]
  local algorithm, cost = hit.algorithm, hit.cost
  local takes = hit.action == TAKE and cost > 0
  local take_one = takes and cost == 1 and algorithm.take_one
  hit.decision = take_one and take_one(hit, hit.now)
  if hit.decision then return true end
  local state = algorithm.load(hit, hit.now)
  if not state.key then return false end
  local decision = algorithm.decide(state, hit, hit.now, cost)
  if takes then
    algorithm.commit(state, hit, hit.now, cost, decision, request)
    if state.dirty then algorithm.save(state) end
  elseif cost > 0 then
    -- Nothing is taken: the outcome stands, the numbers are those of the state as it stays.
    local outcome, retry_after = decision.outcome, decision.retry_after
    decision = algorithm.decide(state, hit, hit.now, 0)
    decision.outcome, decision.retry_after = outcome, retry_after
  end
  hit.decision = decision
  return true
end

-- Decides the hits; false if their keys are of another window.
local function execute(request)
  if is_plain then return execute_plain(request) end
  return execute_coupled(request)
end

local function append_reply()
  reply[length + 1] = 1
  length = length + 1
  for i = 1, count do
    local decision, held_for = hits[i].decision, hits[i].held_for
    reply[length + 1] = decision.outcome
    reply[length + 2] = decision.current_count
    reply[length + 3] = decision.remaining
    reply[length + 4] = decision.retry_after + held_for
    reply[length + 5] = decision.reset_after + held_for
    reply[length + 6] = decision.ttl
    reply[length + 7] = decision.delay
    length = length + 7
    if not is_plain then
      length = length + 1
      reply[length] = hits[i].counted
    end
  end
end

-- What was read last: many ask the same of other keys.
local last_argument
for request = 3, #ARGV do
  local argument = ARGV[request]
  if argument ~= last_argument then parse({ cmsgpack.unpack(argument) }) end
  last_argument = argument
  assign_keys()
  wrote = false
  local ok, result = pcall(execute, request)
  if ok and result then
    append_reply()
  else
    length = length + 1
    reply[length] = 0
    if not ok then
      if wrote then
        reply[length] = 2
        length = length + 1
      end
      reply[length] = type(result) == 'table' and result.err or tostring(result)
    end
  end
end
return cmsgpack.pack(unpack(reply))
