-- Holds of keys, and reservations, for hits of rules that hold. Twin of crates/core/src/reservation.rs and
-- crates/core/src/step/reserved.rs.
--
-- Keys of a hit, after its others:
--   ZSET   numbers of reservations (16 bytes), by the time in µs when they end
--   HASH   units by number, and `sum`, those of all
-- Both expire with the last hold. A request for a reservation has one more key, after those of its hits:
--   STRING  the settlement, concatenated MessagePack values: for each rule its encoded name, then the
--           units charged, returned, of debt, and uncounted
--
-- What has ended is removed when a script writes.
--
-- A number that no script can have written fails the requests of its key that read it, until the last of its
-- holds has ended: what is held must not count as free.

-- What a request does with it. The last one also charges hits without a hold.
local RESERVE, EXTEND, SETTLE, COUNT_ENDED = 0, 1, 2, 3

-- Codes of replies without a reservation.
local NOT_FOUND, FORGOTTEN = 9, 10

-- Holds whose ends are tried for the wait of a denial, aside from the last one; and as many of them as are often
-- enough, which are read first.
local TRIED_ENDS, FIRST_ENDS = 16, 4

-- Most arguments of a command: Lua's stack, which holds them, is small.
local PIECE = 1000

-- Times in µs for which a settlement is remembered: at least, from the end that Reserve gave on, and at most.
local SETTLEMENT_MEMORY, MAX_MEMORY = 600000000, 87000000000

-- Reads the reservation from the values of a request.
local function parse_reservation(values, at)
  reservation = {
    use = values[at + 1], number = values[at + 2], time = values[at + 3],
    known_until = (values[at + 4] or 0) + SETTLEMENT_MEMORY,
    key = false, ends_at = false, held = false, gone = false, settled = false, replayed = false,
    repeated = false,
  }
end

-- Returns a number of a hold or of a settlement as it was read; 0 if there is none.
local function stored(text)
  local number = text == false and 0 or tonumber(text)
  if number and number >= 0 and number <= 9007199254740992 and number % 1 == 0 then return number end
  error({ err = 'ERR the holds of a key, or a settlement, are malformed' })
end

-- Calls `each` with pieces of a list, for commands.
local function in_pieces(list, each)
  for first = 1, #list, PIECE do each(unpack(list, first, min(first + PIECE - 1, #list))) end
end

-- Loads the holds of a hit's key, which the hits of one key share. The key has this many, ended ones too.
local function load_holds(hit, count, holds_by_key)
  local key, units_key = hit.ends_key, hit.units_key
  hit.holds = holds_by_key[key]
  if hit.holds then return end
  local ended = count > 0 and read('ZRANGEBYSCORE', key, '-inf', integer(time)) or {}
  local held, own = 0, false
  count = count - #ended
  if count > 0 then
    local found = read('HMGET', units_key, 'sum', reservation and reservation.number or 'sum') or {}
    held, own = stored(found[1]), found[2]
    in_pieces(ended, function(...)
      local units = read('HMGET', units_key, ...) or {}
      for i = 1, #units do held = held - stored(units[i]) end
    end)
  end
  local holds = {
    ended = ended, held = max(held, 0), count = count, own = false, own_end = false,
    changed = #ended > 0, was_free = count <= 0,
  }
  hit.holds, holds_by_key[key] = holds, holds
  if not reservation or count <= 0 then return end
  local own_end = stored(read('ZSCORE', key, reservation.number))
  if own_end > time then
    holds.own, holds.own_end = stored(own), own_end
  end
end

-- Returns the numbers and ends of holds that have not ended, without the first ones, as many as `skipped`.
local function first_holds(hit, skipped, most)
  local key = hit.ends_key
  local after = '(' .. integer(time)
  return read('ZRANGEBYSCORE', key, after, '+inf', 'WITHSCORES', 'LIMIT', skipped, most) or {}
end

-- Returns the decision on units beside those held, at this time or later. A fixed window counts them all.
-- The others need units below 2^36 (see `divide`), and have limits far below the cut.
local function decide_later(hit, later, units)
  local state, algorithm = hit.state, hit.algorithm
  if algorithm.later then state = algorithm.later(state, hit, later) end
  return algorithm.decide(state, hit, later, min(units, algorithm.max_count or 4294967295))
end

-- Returns the time in µs after which the cost fits beside what is held: the first of the times at which
-- some holds have ended and the state has enough beside the others.
local function wait_beside_holds(hit, cost)
  local holds, wait = hit.holds, nil
  local function consider(ends_at, rest)
    local later = max(ends_at, hit.now)
    local decision = decide_later(hit, later, cost + rest)
    if decision.outcome == IMPOSSIBLE then return end
    -- The end of a later window is not known here.
    if decision.outcome == DENIED and hit.ends_at and later >= hit.ends_at then return end
    local waited = later - hit.now
    if decision.outcome == DENIED then waited = waited + decision.retry_after end
    wait = min(wait or waited, waited)
    return decision.outcome == ALLOWED
  end
  consider(hit.now, holds.held)
  local key, units_key, rest = hit.ends_key, hit.units_key, holds.held
  for skipped = 0, min(FIRST_ENDS, holds.count - 1), FIRST_ENDS do
    local most = skipped == 0 and FIRST_ENDS or TRIED_ENDS - FIRST_ENDS
    local firsts, numbers = first_holds(hit, skipped, most), {}
    for i = 1, #firsts / 2 do numbers[i] = firsts[2 * i - 1] end
    local units = #numbers > 0 and read('HMGET', units_key, unpack(numbers)) or {}
    for i = 1, #numbers do
      rest = rest - stored(units[i])
      -- No later end is sooner.
      if consider(stored(firsts[2 * i]), rest) then return max(wait, 1) end
    end
  end
  local last = read('ZRANGE', key, -1, -1, 'WITHSCORES') or {}
  if last[2] then consider(stored(last[2]), 0) end
  return max(wait or 0, 1)
end

-- Leaves what is held to those who hold it. The numbers of the decision are those of the state alone;
-- `append_hits` takes off what is held.
local function decide_beside_holds(hit, cost)
  local own, holds = hit.decision, hit.holds
  if holds.count <= 0 then return end
  local beside = decide_later(hit, hit.now, cost + holds.held)
  if beside.outcome == ALLOWED then
    own.delay = beside.delay
  elseif own.outcome ~= IMPOSSIBLE then
    local retry_after = wait_beside_holds(hit, cost)
    hit.decision = hit.algorithm.decide(hit.state, hit, hit.now, 0)
    hit.decision.outcome, hit.decision.retry_after = DENIED, retry_after
  end
end

-- Decides on units to hold.
local function decide_hold(hit)
  decide(hit, hit.cost)
  if hit.fixed then return end
  local holds, decision = hit.holds, hit.decision
  if hit.cost == 0 and reservation.use == EXTEND then
    -- A debt must not end what is under way.
    decision.outcome = ALLOWED
    return
  end
  if holds.own_end or holds.count == 0 or holds.count < hit.max_holds then return end
  if decision.outcome == IMPOSSIBLE then return end
  local wait = max(stored(first_holds(hit, 0, 1)[2]) - hit.now, 1)
  if decision.outcome == DENIED then wait = max(wait, decision.retry_after) end
  hit.decision = hit.algorithm.decide(hit.state, hit, hit.now, 0)
  hit.decision.outcome, hit.decision.retry_after = DENIED, wait
end

-- Holds the units of a hit if they are allowed and the request is not refused.
local function apply_hold(hit, refused)
  local holds = hit.holds
  local is_allowed = hit.decision.outcome == ALLOWED
  -- In shadow mode a hold is renewed even where no units are added.
  local is_renewed = reservation.use == EXTEND and holds.own_end
  if not refused and (is_allowed or is_renewed) then
    -- An unlimited key has enough without holding any. The others were allowed beside what is held, so that
    -- no sum is above the largest limit, 10^15 - 1.
    local units = is_allowed and not hit.is_unlimited and hit.cost or 0
    if not holds.own_end then holds.count = holds.count + 1 end
    holds.own, holds.own_end = (holds.own or 0) + units, reservation.ends_at
    holds.held, holds.changed = holds.held + units, true
    reservation.held = true
  end
  if not hit.fixed then with_current_numbers(hit) end
end

-- Ends the hold of a hit, and charges its cost. Returns what it charged and returned, and the debt.
local function settle(hit, request, report)
  local holds = hit.holds
  if not holds.own_end and reservation.use ~= COUNT_ENDED then return 0, 0, 0, 0 end
  local units = holds.own or 0
  if holds.own_end then
    holds.held, holds.count, holds.changed = holds.held - units, holds.count - 1, true
    holds.own, holds.own_end, holds.is_removed = false, false, true
  end
  local cost = hit.cost >= 0 and hit.cost or units
  local returned, charged, debt, uncounted = max(units - cost, 0), 0, 0, 0
  local fixed = hit.fixed
  if not fixed or hit.counts or hit.own_units > 0 then
    -- Counted by the limit beneath a ban.
    hit.fixed = false
    if cost > 0 then
      hit.cost = cost
      report(hit, request)
      charged = hit.counted
    else
      decide(hit, 0)
    end
    debt, uncounted = max(0 - hit.decision.remaining, 0), cost - charged
    hit.fixed = fixed
  end
  return charged, returned, debt, uncounted
end

-- Ends all holds of the reservation.
local function settle_all(request, report)
  local is_forgotten = reservation.known_until <= time
  if is_forgotten then reservation.use = SETTLE end
  local found, settled = reservation.use == COUNT_ENDED, {}
  for i = 1, count do found = found or hits[i].holds.own_end end
  reservation.gone = not found and (is_forgotten and FORGOTTEN or NOT_FOUND)
  if not found then return end
  for i = 1, count do
    local at = #settled
    settled[at + 1] = hits[i].rule_name
    settled[at + 2], settled[at + 3], settled[at + 4], settled[at + 5] = settle(hits[i], request, report)
    decide(hits[i], 0)
  end
  reservation.settled = settled
end

-- Executes a request for a reservation, by these functions of coupled.lua.
local function execute_reserved(request, all_or_nothing, report)
  if reservation.use > EXTEND then return settle_all(request, report) end
  local known, is_missing = false, false
  for i = 1, count do
    if hits[i].use == HOLD then
      local own_end = hits[i].holds.own_end
      if own_end then known = max(known or 0, own_end) else is_missing = true end
    end
  end
  if reservation.use == RESERVE and known then
    reservation.held, reservation.repeated, reservation.ends_at = true, true, known
    for i = 1, count do
      decide(hits[i], 0)
      hits[i].decision.outcome, hits[i].decision.retry_after = ALLOWED, 0
    end
  elseif reservation.use == EXTEND and is_missing then
    reservation.gone = NOT_FOUND
  else
    reservation.ends_at = reservation.time >= 0 and time + reservation.time or known
    all_or_nothing(request)
    if not reservation.held and known then
      -- Denied: an extension leaves the end as it was.
      reservation.held, reservation.ends_at = true, known
    end
  end
end

-- Returns true if the settlement of the reservation is known.
local function recall_settlement()
  local key = reservation.key
  local text = read('GET', key)
  if type(text) ~= 'string' then return false end
  if reservation.use > EXTEND then
    local ok, settled = pcall(function() return { cmsgpack.unpack(text) } end)
    ok = ok and #settled > 0 and #settled % 5 == 0
    for i = 1, ok and #settled or 0 do
      ok = ok and (i % 5 == 1 and type(settled[i]) == 'string' or i % 5 ~= 1 and stored(settled[i]))
    end
    if not ok then error({ err = 'ERR the settlement of a reservation is malformed' }) end
    reservation.replayed = settled
  else
    reservation.gone = NOT_FOUND
  end
  return true
end

-- Writes the settlement of the reservation.
local function save_settlement()
  local key = reservation.key
  if not reservation.settled or reservation.time <= 0 then return end
  local value = cmsgpack.pack(unpack(reservation.settled))
  -- As long as anybody may take it for an open one, whatever end was made up.
  local memory = min(max(reservation.time, reservation.known_until - time), MAX_MEMORY)
  redis.call('SET', key, value, 'PX', integer(ceil(memory / 1000)))
  wrote = true
end

-- Writes the holds of a hit's key, and their time to live.
local function save_holds(hit)
  local holds = hit.holds
  if not holds.changed then return end
  holds.changed = false
  local key, units_key = hit.ends_key, hit.units_key
  wrote = true
  if holds.count <= 0 or holds.was_free then
    -- Also values of another type.
    redis.call('DEL', key, units_key)
    if holds.count <= 0 then return end
  else
    in_pieces(holds.ended, function(...)
      redis.call('ZREM', key, ...)
      redis.call('HDEL', units_key, ...)
    end)
  end
  if holds.own_end then
    local number = reservation.number
    redis.call('ZADD', key, integer(holds.own_end), number)
    redis.call('HSET', units_key, number, integer(holds.own), 'sum', integer(holds.held))
  else
    if holds.is_removed then
      redis.call('ZREM', key, reservation.number)
      redis.call('HDEL', units_key, reservation.number)
    end
    redis.call('HSET', units_key, 'sum', integer(holds.held))
  end
  local last = holds.count == 1 and holds.own_end
    or tonumber(redis.call('ZRANGE', key, -1, -1, 'WITHSCORES')[2]) or time
  -- A foreign end must not leave the keys for ever.
  local ends_at = min(last, time + MAX_MEMORY)
  local expires_at = integer(ceil(ends_at / 1000) + 1000)
  redis.call('PEXPIREAT', key, expires_at)
  redis.call('PEXPIREAT', units_key, expires_at)
end

-- Ends all holds of a hit's key.
local function drop_holds(hit)
  local holds = hit.holds
  holds.held, holds.count, holds.own_end, holds.changed = 0, 0, false, true
end

-- Appends the holds of a hit to the reply. Returns its new length.
local function append_holds(hit, list, length)
  local holds, decision = hit.holds, hit.decision
  list[length + 1], list[length + 2] = holds.held, max(holds.count, 0)
  list[length + 3] = holds.own_end and holds.own + 1 or 0
  local denies = holds.count > 0 and not hit.fixed and decision.outcome == DENIED
  if denies then
    local own = hit.algorithm.decide(hit.state, hit, hit.now, max(hit.cost, 0))
    --@rare
    local more = hit.cost > 0 and hit.headroom and budgets.part_of(hit, hit.headroom)
    own = more and hit.algorithm.decide(hit.state, hit, hit.now, hit.cost + more) or own
    --@end
    denies = own.outcome == ALLOWED
  end
  list[length + 4] = denies and 1 or 0
  return length + 4
end

-- Appends what became of the reservation to the reply. Returns its new length.
local function append_reservation(list, length)
  if reservation.settled then
    list[length + 1] = 2
    length = length + 1
    for i = 1, #reservation.settled do list[length + i] = reservation.settled[i] end
    return length + #reservation.settled
  end
  list[length + 1] = reservation.held and (reservation.repeated and 3 or 1) or 0
  if not reservation.held then return length + 1 end
  list[length + 2] = reservation.ends_at
  return length + 2
end

holds = {
  parse_reservation = parse_reservation, load = load_holds,
  decide_beside = decide_beside_holds, decide = decide_hold, apply = apply_hold, drop = drop_holds,
  execute_reserved = execute_reserved, recall = recall_settlement, save_settlement = save_settlement,
  save = save_holds, append = append_holds, append_reservation = append_reservation,
}
