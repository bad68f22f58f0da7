-- Answers questions, one after the other: each is a request with its hits.
--
-- Decides every hit of a request, then commits only if all enforced ones allow: a denied request
-- takes nothing anywhere. Or gives back what an earlier call took, and looks at what is then left.
-- An error in one request is its own answer.
--
-- KEYS     the keys of the first hit, then those of the second, ...
-- ARGV[1]  nonce        text, unique for each call; echoed, and in the suffix of log entries
-- then for each request
--      +1  intent       text: `take` the cost, `look` (dry run), or `give_back` what was taken
--      +2  hits         how many hits follow
-- then for each hit
--      +1  algorithm    text, as in `algorithms`
--      +2  keys         how many KEYS belong to the hit
--      +3  first_index  fixed window: index of the window of the hit's first key; else 0
--      +4  units        limit: units per window
--      +5  window       limit: µs
--      +6  burst        limit: units at once
--      +7  cost         units
--      +8  enforced     1 if a denial stops the others from taking, 0 for a shadow
--      +9  seen         µs: the latest time of this server at which the service saw a decision on
--                       a limit with this window, or 0
-- and to give back, of the decision that took the cost
--      +10 taken_at     µs: when it was made; the key of a fixed window is of that window alone
--      +11 reset_after  µs: as that decision told
--
-- Reply: { nonce, time in µs }, then for each request one of
--   1, and for each hit outcome (0 allowed, 1 denied, 2 impossible), current_count, remaining, then
--      in µs retry_after, reset_after, ttl, delay;
--   0: the keys were of another window than the time's, and nothing was written. That is no answer
--      to `give_back`: a window that is not named counts as empty there;
--   the text of an error.

local REPLY_FIELDS = {
  'outcome', 'current_count', 'remaining', 'retry_after', 'reset_after', 'ttl', 'delay',
}

local nonce, time = ARGV[1], clock()
local reply = { nonce, time }
-- The next argument and key to be read.
local argument, key = 2, 1

-- Reads one hit.
local function parse(gives_back)
  local keys = {}
  for i = 1, tonumber(ARGV[argument + 1]) do
    keys[i] = KEYS[key]
    key = key + 1
  end
  local now = hold(time, tonumber(ARGV[argument + 8]), tonumber(ARGV[argument + 4]))
  local hit = {
    algorithm = algorithms[ARGV[argument]],
    keys = keys,
    first_index = tonumber(ARGV[argument + 2]),
    units = tonumber(ARGV[argument + 3]),
    window = tonumber(ARGV[argument + 4]),
    burst = tonumber(ARGV[argument + 5]),
    cost = tonumber(ARGV[argument + 6]),
    enforced = ARGV[argument + 7] == '1',
    now = now,
    held_for = now - time,
    held_for_ms = floor_millis(now) - floor_millis(time),
  }
  argument = argument + 9
  if gives_back then
    hit.taken = { at = tonumber(ARGV[argument]), reset_after = tonumber(ARGV[argument + 1]) }
    argument = argument + 2
  end
  return hit
end

-- The decisions of a request, or nil if its keys are of another window.
local function answer(hits, intent, suffix)
  local take, gives_back, all_allow = intent == 'take', intent == 'give_back', true
  for _, hit in ipairs(hits) do
    if gives_back then
      local state = hit.algorithm.load(hit, hit.taken.at)
      if hit.cost > 0 then hit.algorithm.give_back(state, hit, hit.now, hit.cost, hit.taken) end
      -- From here on it takes nothing: it looks.
      hit.cost = 0
    end
    hit.state = hit.algorithm.load(hit, hit.now)
    if not (hit.state.key or gives_back) then return nil end
    hit.decision = hit.algorithm.decide(hit.state, hit, hit.now, hit.cost)
    all_allow = all_allow and (hit.decision.outcome == ALLOWED or not hit.enforced)
  end

  for _, hit in ipairs(hits) do
    local decision = hit.decision
    if take and hit.cost > 0 and (all_allow or decision.outcome ~= ALLOWED) then
      hit.algorithm.commit(hit.state, hit, hit.now, hit.cost, decision, suffix)
    elseif hit.cost > 0 then
      -- Nothing is taken: the outcome stands, the numbers are those of the state as it stays.
      hit.decision = hit.algorithm.decide(hit.state, hit, hit.now, 0)
      hit.decision.outcome, hit.decision.retry_after = decision.outcome, decision.retry_after
    end
  end
  return hits
end

local function tell(hits)
  reply[#reply + 1] = 1
  for _, hit in ipairs(hits) do
    local decision = hit.decision
    decision.retry_after = decision.retry_after + hit.held_for
    decision.reset_after = decision.reset_after + hit.held_for
    for _, field in ipairs(REPLY_FIELDS) do
      reply[#reply + 1] = decision[field]
    end
  end
end

while argument <= #ARGV do
  local intent, hits, suffix = ARGV[argument], {}, nonce .. '.' .. integer(argument)
  local count = tonumber(ARGV[argument + 1])
  argument = argument + 2
  for i = 1, count do hits[i] = parse(intent == 'give_back') end
  local fine, answered = pcall(answer, hits, intent, suffix)
  if not fine then
    reply[#reply + 1] = type(answered) == 'table' and answered.err or tostring(answered)
  elseif answered then
    tell(answered)
  else
    reply[#reply + 1] = 0
  end
end
return reply
