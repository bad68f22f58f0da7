-- Decides every hit, then commits only if all enforced ones allow: a denied request takes nothing anywhere.
-- Or gives back what an earlier call took, and looks at what is then left.
--
-- KEYS     the keys of the first hit, then those of the second, ...
-- ARGV[1]  nonce        text, unique for each call; echoed, and the suffix of log entries
-- ARGV[2]  intent       text: `take` the cost, `look` (dry run), or `give_back` what was taken
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
-- Reply: { nonce, time in µs }, then for each hit outcome (0 allowed, 1 denied, 2 impossible),
-- current_count, remaining, then in µs retry_after, reset_after, ttl, delay.
-- Without any hit: the keys were of another window than the time's; nothing was written. That is
-- no answer to `give_back`: a window that is not named counts as empty there.

local nonce, intent = ARGV[1], ARGV[2]
local take, gives_back = intent == 'take', intent == 'give_back'

local FIELDS = gives_back and 11 or 9
local REPLY_FIELDS = {
  'outcome', 'current_count', 'remaining', 'retry_after', 'reset_after', 'ttl', 'delay',
}

local function parse(base, first_key)
  local keys = {}
  for i = 1, tonumber(ARGV[base + 2]) do keys[i] = KEYS[first_key + i - 1] end
  return {
    algorithm = algorithms[ARGV[base + 1]],
    keys = keys,
    first_index = tonumber(ARGV[base + 3]),
    units = tonumber(ARGV[base + 4]),
    window = tonumber(ARGV[base + 5]),
    burst = tonumber(ARGV[base + 6]),
    cost = tonumber(ARGV[base + 7]),
    enforced = ARGV[base + 8] == '1',
    seen = tonumber(ARGV[base + 9]),
  }
end

local time = clock()
local hits, all_allow, first_key = {}, true, 1

for base = 2, #ARGV - FIELDS, FIELDS do
  local hit = parse(base, first_key)
  first_key = first_key + #hit.keys
  hit.now = hold(time, hit.seen, hit.window)
  hit.held_for = hit.now - time
  hit.held_for_ms = floor_millis(hit.now) - floor_millis(time)
  if gives_back then
    local taken = { at = tonumber(ARGV[base + 10]), reset_after = tonumber(ARGV[base + 11]) }
    local state = hit.algorithm.load(hit, taken.at)
    if hit.cost > 0 then hit.algorithm.give_back(state, hit, hit.now, hit.cost, taken) end
    -- From here on it takes nothing: it looks.
    hit.cost = 0
  end
  hit.state = hit.algorithm.load(hit, hit.now)
  if not (hit.state.key or gives_back) then return { nonce, time } end
  hit.decision = hit.algorithm.decide(hit.state, hit, hit.now, hit.cost)
  all_allow = all_allow and (hit.decision.outcome == ALLOWED or not hit.enforced)
  hits[#hits + 1] = hit
end

local reply = { nonce, time }
for _, hit in ipairs(hits) do
  local decision = hit.decision
  if take and hit.cost > 0 and (all_allow or decision.outcome ~= ALLOWED) then
    hit.algorithm.commit(hit.state, hit, hit.now, hit.cost, decision, nonce)
  elseif hit.cost > 0 then
    -- Nothing is taken: the outcome stands, the numbers are those of the state as it stays.
    decision = hit.algorithm.decide(hit.state, hit, hit.now, 0)
    decision.outcome, decision.retry_after = hit.decision.outcome, hit.decision.retry_after
  end
  decision.retry_after = decision.retry_after + hit.held_for
  decision.reset_after = decision.reset_after + hit.held_for
  for _, field in ipairs(REPLY_FIELDS) do
    reply[#reply + 1] = decision[field]
  end
end
return reply
