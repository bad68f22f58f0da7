-- Answers questions, one after the other: each is a request with its hits.
--
-- Decides every hit of a request, then commits only if all enforced ones allow: a denied request
-- takes nothing anywhere. Or gives back what an earlier call took, and looks at what is then left.
-- An error in one request is its own answer.
--
-- KEYS     the keys of the first hit, then those of the second, ...
-- ARGV[1]  nonce   text, unique for each call; echoed, and in the suffix of log entries
-- ARGV[2]  note    text, of no meaning here
-- ARGV[3]  and on: one request each, as values of MessagePack, one behind the other: reading a
--          number from text takes longer than a command on a key
--      1   intent       text: `take` the cost if all allow, `take_each` that allows, `look` (dry run),
--                       or `give_back` what was taken
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
-- and to give back, of the decision that took the cost
--      +10 taken_at     µs: when it was made; the key of a fixed window is of that window alone
--      +11 reset_after  µs: as that decision told
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

local time = clock()
local reply = { NONCE, time }
local told = #reply
-- The next of KEYS that belongs to no hit yet.
local next_key = 1

-- The request at hand: what for, and its hits. Its tables serve the next one, too: what is left
-- behind takes time to collect.
local intent, hits, count = nil, {}, 0

-- Reads a request from its values.
local function parse(values)
  intent, count = values[1], values[2]
  local gives_back, at = intent == 'give_back', 2
  for i = 1, count do
    local hit = hits[i] or {}
    hits[i] = hit
    local window = values[at + 5]
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
    hit.taken = gives_back and { at = values[at + 10], reset_after = values[at + 11] }
    at = at + (gives_back and 11 or 9)
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

-- Takes what is left where a hit is denied for more.
local function take_rest(hit, number)
  local rest = hit.decision.remaining
  if rest == 0 then return end
  local state = hit.algorithm.load(hit, hit.now)
  local taken = hit.algorithm.decide(state, hit, hit.now, rest)
  hit.algorithm.commit(state, hit, hit.now, rest, taken, number)
  hit.decision = hit.algorithm.decide(hit.algorithm.load(hit, hit.now), hit, hit.now, hit.cost)
end

-- Decides the hits; false if their keys are of another window.
local function answer(number)
  if count == 1 and intent == 'take' then
    -- Nothing depends on others: what is taken is what is decided.
    local hit = hits[1]
    local take_one = hit.cost == 1 and hit.algorithm.take_one
    hit.decision = take_one and take_one(hit, hit.now)
    if hit.decision then return true end
  end
  local take, each, gives_back = intent == 'take', intent == 'take_each', intent == 'give_back'
  local all_allow, quota_allows = true, nil
  for i = 1, count do
    local hit = hits[i]
    if gives_back then
      local state = hit.algorithm.load(hit, hit.taken.at)
      if hit.cost > 0 then hit.algorithm.give_back(state, hit, hit.now, hit.cost, hit.taken) end
      -- From here on it takes nothing: it looks.
      hit.cost = 0
    end
    hit.state = hit.algorithm.load(hit, hit.now)
    if not (hit.state.key or gives_back) then return false end
    hit.decision = hit.algorithm.decide(hit.state, hit, hit.now, hit.cost)
    local allows = hit.decision.outcome == ALLOWED
    if hit.mode == QUOTA then
      quota_allows = quota_allows or allows
    elseif hit.mode == ENFORCED and not allows then
      all_allow = false
    end
  end
  if quota_allows == false then all_allow = false end

  for i = 1, count do
    local hit = hits[i]
    local decision = hit.decision
    local takes = each or take and (all_allow or decision.outcome ~= ALLOWED)
    if takes and hit.cost > 0 then
      hit.algorithm.commit(hit.state, hit, hit.now, hit.cost, decision, number)
      if each and decision.outcome ~= ALLOWED then take_rest(hit, number) end
    elseif hit.cost > 0 then
      -- Nothing is taken: the outcome stands, the numbers are those of the state as it stays.
      hit.decision = hit.algorithm.decide(hit.state, hit, hit.now, 0)
      hit.decision.outcome, hit.decision.retry_after = decision.outcome, decision.retry_after
    end
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
for number = 3, #ARGV do
  local argument = ARGV[number]
  if argument ~= known then parse({ cmsgpack.unpack(argument) }) end
  -- To give back changes the hits.
  known = intent ~= 'give_back' and argument or nil
  assign_keys()
  local fine, answered = pcall(answer, number)
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
