-- Answers questions, one after the other: each is a request with its hits.
--
-- Counts the reports of a request, decides its other hits, then commits only if none refuses: a
-- denied request takes nothing anywhere. Or takes from each hit by itself. Or gives back what an earlier call took, and looks at what is then left.
-- An error in one request is its own answer.
--
-- KEYS     the keys of the first hit, then those of the second, ...
-- ARGV[1]  nonce   text, unique for each call; echoed, and in the suffix of log entries
-- ARGV[2]  note    text, of no meaning here
-- ARGV[3]  and on: one request each, as values of MessagePack, one behind the other: reading a
--          number from text takes longer than a command on a key
--      1   coupling     text: `all_or_nothing` takes only if no hit refuses, `each_alone` from each hit
--                       in order; or `give_back` what was taken
--      2   hits         how many hits follow
-- then for each hit
--      +1  algorithm    text, as in `algorithms`
--      +2  keys         how many KEYS belong to the hit
--      +3  first_index  fixed window: index of the window of the hit's first key; else 0
--      +4  units        limit: units per window
--      +5  window       limit: µs
--      +6  burst        limit: units at once
--      +7  cost         units
--      +8  mode         what a denial does to the others: 1 stops them from taking, 0 (a shadow)
--                       nothing, 2 (a quota) stops them if all quotas deny
--      +9  seen         µs: the latest time of this server at which the service saw a decision on
--                       a limit with this window, or 0
--      +10 action       0 decides and takes nothing, 1 takes, 2 reports: counts whatever is left
--      +11 max_debt     limit: units that may be owed; -1: what is above the limit is no debt
-- and to give back, of the decision that took the cost
--      +12 taken_at     µs: when it was made; the key of a fixed window is of that window alone
--      +13 reset_after  µs: as that decision told
--
-- Reply: values of MessagePack, one behind the other: nonce, time in µs, then for each request one
-- of
--   1, and for each hit outcome (0 allowed, 1 denied, 2 impossible), current_count, remaining, then
--      in µs retry_after, reset_after, ttl, delay;
--   0: the keys were of another window than the time's, and nothing was written. That is no answer
--      to `give_back`: a window that is not named counts as empty there;
--   the text of an error.

-- What a denial does to the others: modes of hits. A shadow, 0, does nothing.
local ENFORCED, QUOTA = 1, 2
-- Actions of hits. A look, 0, takes nothing.
local TAKE, REPORT = 1, 2

local time = clock()
local reply = { NONCE, time }
local told = #reply
-- The next of KEYS that belongs to no hit yet.
local next_key = 1

-- The request at hand: how its hits depend on each other, and they. Its tables serve the next one,
-- too: what is left behind takes time to collect.
local coupling, hits, count = nil, {}, 0

-- Reads a request from its values.
local function parse(values)
  coupling, count = values[1], values[2]
  local gives_back, at = coupling == 'give_back', 2
  for i = 1, count do
    local hit = hits[i] or {}
    hits[i] = hit
    local window, max_debt = values[at + 5], values[at + 11]
    hit.algorithm = algorithms[values[at + 1]]
    hit.keys = values[at + 2]
    hit.first_index = values[at + 3]
    hit.units = values[at + 4]
    hit.window = window
    hit.burst = values[at + 6]
    hit.cost = values[at + 7]
    hit.mode = values[at + 8]
    hit.now = hold(time, values[at + 9], window)
    hit.held_for = hit.now - time
    hit.action = values[at + 10]
    hit.max_debt = max_debt
    hit.debt = max_debt > 0 and max_debt or 0
    hit.taken = gives_back and { at = values[at + 12], reset_after = values[at + 13] }
    at = at + (gives_back and 13 or 11)
  end
end

-- Gives the hits the next of KEYS.
local function assign_keys()
  for i = 1, count do
    local hit = hits[i]
    hit.key = KEYS[next_key]
    hit.first_key = next_key
    next_key = next_key + hit.keys
  end
end

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

-- Nothing is taken: the outcome stands, the numbers are those of the state as it stays.
local function look(hit)
  local outcome, retry_after = hit.decision.outcome, hit.decision.retry_after
  decide(hit, 0)
  hit.decision.outcome, hit.decision.retry_after = outcome, retry_after
end

-- Counts a cost that has been incurred already. Allows if it fitted; the numbers are those of the
-- state after it, the wait is that of one unit.
local function report(hit, number)
  decide(hit, 0)
  local left = hit.decision.remaining
  hit.state = hit.algorithm.charge(hit.state, hit, hit.now, hit.cost, number)
  decide(hit, 1)
  look(hit)
  if hit.cost <= left then hit.decision.outcome, hit.decision.retry_after = ALLOWED, 0 end
end

-- Takes the cost, or what is left where that is denied.
local function take_what_is_left(hit, number)
  decide(hit, hit.cost)
  hit.algorithm.commit(hit.state, hit, hit.now, hit.cost, hit.decision, number)
  local rest = hit.decision.remaining
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
    look(hit)
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

-- Does a hit refuse the request, or do all quotas? The one place that says so.
local function is_refused()
  local refused, quota_allows = false, nil
  for i = 1, count do
    local hit = hits[i]
    local allows = hit.decision.outcome == ALLOWED
    if hit.mode == QUOTA then
      quota_allows = quota_allows or allows
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
        if allows then decide(hit, hit.cost) else look(hit) end
      end
      hit.algorithm.commit(hit.state, hit, hit.now, hit.cost, hit.decision, number_of(request, i))
    elseif hit.action ~= REPORT and hit.cost > 0 then
      look(hit)
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
    hit.state = hit.algorithm.load(hit, hit.now)
    decide(hit, 0)
  end
end

-- The common case: nothing depends on others, so what is decided is taken. False if the key is of
-- another window.
local function only_one(request)
  local hit = hits[1]
  local takes = hit.action == TAKE and hit.cost > 0
  local takes_one = takes and hit.cost == 1 and hit.max_debt < 0
  local take_one = takes_one and hit.algorithm.take_one
  hit.decision = take_one and take_one(hit, hit.now)
  if hit.decision then return true end
  hit.state = hit.algorithm.load(hit, hit.now)
  if not hit.state.key then return false end
  if takes then
    hit.decision = hit.algorithm.decide(hit.state, hit, hit.now, hit.cost)
    hit.algorithm.commit(hit.state, hit, hit.now, hit.cost, hit.decision, request)
  else
    alone(hit, request)
  end
  return true
end

-- Decides the hits; false if their keys are of another window.
local function answer(request)
  if count == 1 and coupling == 'all_or_nothing' then return only_one(request) end
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

local function tell()
  reply[told + 1] = 1
  told = told + 1
  for i = 1, count do
    local decision, held_for = hits[i].decision, hits[i].held_for
    reply[told + 1] = decision.outcome
    reply[told + 2] = decision.current_count
    reply[told + 3] = decision.remaining
    reply[told + 4] = decision.retry_after + held_for
    reply[told + 5] = decision.reset_after + held_for
    reply[told + 6] = decision.ttl
    reply[told + 7] = decision.delay
    told = told + 7
  end
end

-- What was read last: many ask the same of other keys.
local known
for request = 3, #ARGV do
  local argument = ARGV[request]
  if argument ~= known then parse({ cmsgpack.unpack(argument) }) end
  known = argument
  assign_keys()
  local fine, answered = pcall(answer, request)
  if fine and answered then
    tell()
  else
    told = told + 1
    reply[told] = 0
    if not fine then
      reply[told] = type(answered) == 'table' and answered.err or tostring(answered)
    end
  end
end
return cmsgpack.pack(unpack(reply))
