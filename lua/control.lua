-- Overrides and bans of single keys, for hits of overridable rules. Twin of crates/core/src/control.rs
-- and crates/core/src/step/overridden.rs.
--
-- Key: HASH, one for each id, in the slot of its states. Fields:
--   NAME        encoded name of a rule: four MessagePack integers: `ban` and `grant`, the times in µs
--               when they end, or 0; then `units` per window and `burst` of the grant. `units` is -1 if
--               it is unlimited.
--   NAME:ban, NAME:grant   notes of who set them. Encoded names have no colon.
--
-- The hash expires with its last part. Parts end by the clock that decides, and are dropped when the
-- hash is written.

-- Actions that change overrides.
local SET_OVERRIDE, CLEAR_OVERRIDE = 6, 7

-- Kinds of overrides to clear. 0 is both.
local BAN, GRANT = 1, 2

-- Reads the fields of a controlled hit, which follow its others. Returns the index of the last one.
local function parse_control(hit, values, at)
  hit.rule, hit.most_units, hit.has_burst = values[at + 1], values[at + 2], values[at + 3] == 1
  hit.own_units, hit.own_burst, hit.own_debt = hit.units, hit.burst, hit.max_debt
  hit.own_shared_burst, hit.own_shared_units = hit.shared_burst, hit.shared_units
  hit.shows = hit.action == 0 or hit.action > REFUND
  --@full
  hit.shows = hit.shows and not (hit.use and hit.use > 0)
  --@end
  hit.control, hit.fixed, hit.shown, hit.counts, hit.is_unlimited = true, false, false, false, false
  at = at + 3
  if hit.action == SET_OVERRIDE then
    hit.change = {
      units = values[at + 1], burst = values[at + 2], ttl = values[at + 3], note = values[at + 4],
    }
    return at + 4
  elseif hit.action == CLEAR_OVERRIDE then
    hit.clears = values[at + 1]
    return at + 1
  end
  return at
end

-- Returns the numbers of a record. A record that can't be read must not count as none.
local function unpack_overrides(value)
  local ban, grant, units, burst = cmsgpack.unpack(value)
  if type(ban) == 'number' and type(grant) == 'number' and type(units) == 'number'
    and type(burst) == 'number' then
    return ban, grant, units, burst
  end
  error({ err = 'ERR the record of an override is malformed' })
end

-- Returns the record of a hit's key. Parts that have ended are 0.
local function load_overrides(hit)
  local value = redis.call('HGET', hit.control_key, hit.rule)
  local ban, grant, units, burst = 0, 0, 0, 0
  if value then ban, grant, units, burst = unpack_overrides(value) end
  if ban <= time then ban = 0 end
  if grant <= time then grant, units, burst = 0, 0, 0 end
  return {
    ban = ban, grant = grant, units = units, burst = burst, ban_note = false, grant_note = false,
    dirty = false,
  }
end

-- Returns the most units of debt that can be kept beside the limit of a hit. Twin of
-- `Algorithm::max_debt`.
local function most_debt(hit)
  local count = hit.algorithm.max_count
  if count then return count - hit.units end
  local paid_back = units_in(hit, MAX_WINDOW, 0)
  return min(paid_back, MAX_IN_USE - hit.shared_burst)
end

-- Sets the limit by which a hit is decided. Debt stays that of the rule, up to the most that its
-- algorithm accepts.
local function set_limit(hit, units, burst, shared_burst, shared_units)
  hit.units, hit.burst, hit.shared_burst, hit.shared_units = units, burst, shared_burst, shared_units
  hit.max_debt = hit.own_debt < 0 and -1 or min(hit.own_debt, most_debt(hit))
  local debt = max(hit.max_debt, 0)
  hit.least, hit.max_in_use = 0 - debt, shared_burst + debt
end

-- Returns units and burst of a grant in the window of the rule, cut to what its algorithm accepts.
local function grant(hit, record)
  if record.units < 0 then return -1, 0 end
  local units = min(record.units, hit.most_units)
  if not hit.has_burst then return units, units end
  hit.units = units
  local most = units_in(hit, MAX_FILL, 0)
  return units, max(min(record.burst, most, MAX_UNITS), 1)
end

-- Decides what is granted to a hit: its ban, its override, or what the request says. Sets `fixed` to
-- the decision if it is no limit: then nothing is counted.
local function apply_record(hit, record)
  hit.shown = record
  local units, burst = hit.own_units, hit.own_burst
  local shared_burst, shared_units = hit.own_shared_burst, hit.own_shared_units
  if record.grant > 0 then
    units, burst = grant(hit, record)
    shared_burst, shared_units = burst, 0
  end
  -- Without a ban: units are returned by it. A reset needs some limit.
  hit.counts, hit.is_unlimited, hit.fixed = units > 0, false, false
  if units > 0 then
    set_limit(hit, units, burst, shared_burst, shared_units)
  elseif hit.own_units > 0 then
    set_limit(hit, hit.own_units, hit.own_burst, hit.own_shared_burst, hit.own_shared_units)
  else
    set_limit(hit, 1, 1, 1, 0)
  end
  local outcome, wait = IMPOSSIBLE, 0
  if record.ban > 0 then
    outcome, wait = DENIED, record.ban - time
  elseif units > 0 then
    return
  elseif units < 0 then
    outcome, hit.is_unlimited = ALLOWED, true
  end
  -- The end of a ban does not move with a clock that is frozen.
  wait = wait - hit.frozen_for
  hit.fixed = {
    outcome = outcome, current_count = 0, remaining = 0, retry_after = wait, reset_after = wait,
    ttl = 0, delay = 0,
  }
end

-- Returns true if the reply shows what a banned key has used: to those who look, if a limit counts beneath.
local function shows_count(hit)
  return hit.fixed and hit.counts and hit.shows
end

-- Sets the count of a banned key.
local function show_count(hit, state)
  hit.fixed.current_count = hit.algorithm.decide(state, hit, hit.now, 0).current_count
end

-- Appends the record in force to the reply, and its notes to those who look.
local function append_record(hit, reply, length)
  local record = hit.shown
  reply[length + 1], reply[length + 2] = record.ban, record.grant
  reply[length + 3], reply[length + 4] = record.units, record.burst
  if not hit.shows then return length + 4 end
  reply[length + 5] = record.ban > 0 and record.ban_note or ''
  reply[length + 6] = record.grant > 0 and record.grant_note or ''
  return length + 6
end

control = {
  parse = parse_control, load = load_overrides, apply = apply_record, shows_count = shows_count,
  show_count = show_count, append = append_record,
}

--@coupled

-- Records of the request, by the key of their hash and the name of their rule.
local records

-- Returns the record of a hit, which hits of one key share.
local function overrides_of(hit)
  local of_key = records[hit.control_key] or {}
  records[hit.control_key] = of_key
  local record = of_key[hit.rule] or load_overrides(hit)
  of_key[hit.rule] = record
  if hit.shows and not record.ban_note then
    record.ban_note = redis.call('HGET', hit.control_key, hit.rule .. ':ban') or ''
    record.grant_note = redis.call('HGET', hit.control_key, hit.rule .. ':grant') or ''
  end
  return record
end

-- Sets or clears overrides of a hit's key, in the table alone.
local function change_record(hit)
  local record, change = overrides_of(hit), hit.change
  record.dirty = true
  if hit.action == CLEAR_OVERRIDE then
    if hit.clears ~= GRANT then record.ban = 0 end
    if hit.clears ~= BAN then record.grant, record.units, record.burst = 0, 0, 0 end
  elseif change.units == 0 then
    record.ban, record.ban_note = time + change.ttl, change.note
  else
    record.grant, record.grant_note = time + change.ttl, change.note
    record.units, record.burst = change.units, change.burst
  end
end

-- Applies the record of a hit as it then is: a later hit of the request may change it.
local function apply_shared(hit)
  local record = overrides_of(hit)
  apply_record(hit, {
    ban = record.ban, grant = record.grant, units = record.units, burst = record.burst,
    ban_note = record.ban_note, grant_note = record.grant_note,
  })
end

-- Changes the record of a controlled hit, if that is its action, and applies it.
local function control_alone(hit)
  if not hit.control then return end
  if hit.action >= SET_OVERRIDE then change_record(hit) end
  apply_shared(hit)
end

-- Changes all records, then applies them.
local function control_all()
  for i = 1, count do
    if hits[i].control and hits[i].action >= SET_OVERRIDE then change_record(hits[i]) end
  end
  for i = 1, count do
    if hits[i].control then apply_shared(hits[i]) end
  end
end

-- Returns the last end of the other records of a hash, and the fields of those that have ended.
local function other_records(key, name)
  local last, ended = 0, {}
  local fields = redis.call('HGETALL', key)
  for i = 1, #fields, 2 do
    local other = fields[i]
    if other ~= name and not other:find(':', 1, true) then
      local ban, grant = unpack_overrides(fields[i + 1])
      local ends = max(ban, grant)
      if ends > time then
        last = max(last, ends)
      else
        ended[#ended + 1] = other
        ended[#ended + 1] = other .. ':ban'
        ended[#ended + 1] = other .. ':grant'
      end
    end
  end
  return last, ended
end

-- Writes a record and the end of its hash, and drops what has ended.
local function save_overrides(key, name, record)
  local last, gone = other_records(key, name)
  last = max(last, record.ban, record.grant)
  local fields = {}
  for _, part in ipairs({ 'ban', 'grant' }) do
    if record[part] > 0 then
      fields[#fields + 1], fields[#fields + 2] = name .. ':' .. part, record[part .. '_note']
    else
      gone[#gone + 1] = name .. ':' .. part
    end
  end
  if #fields > 0 then
    local value = cmsgpack.pack(record.ban, record.grant, record.units, record.burst)
    redis.call('HSET', key, name, value, unpack(fields))
    wrote = true
  else
    gone[#gone + 1] = name
  end
  -- In calls of few fields: Lua's stack, which holds the arguments, is small.
  for first = 1, #gone, 1000 do
    redis.call('HDEL', key, unpack(gone, first, min(first + 999, #gone)))
    wrote = true
  end
  if last > 0 then redis.call('PEXPIREAT', key, integer(ceil(last / 1000))) end
end

local function save_all_overrides()
  for key, of_key in pairs(records) do
    for name, record in pairs(of_key) do
      if record.dirty then save_overrides(key, name, record) end
    end
  end
end

function control.begin()
  records = {}
end

control.execute_alone, control.execute_all, control.save = control_alone, control_all, save_all_overrides
