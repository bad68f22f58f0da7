-- Request ids: the same request under the same id takes its units once. Twin of
-- crates/core/src/idempotency/mod.rs.
--
-- The record of a request is one more key, after those of its hits. It is written before the states,
-- and removed if the write of a state fails: a record without units could let a request pass for
-- nothing.
--
-- Key: STRING, concatenated MessagePack values:
--   1   format       integer: FORMAT
--   2   fingerprint  16 bytes: hash of the request
--   3   hits         16 bytes: hash of the keys and algorithms of the hits
--   4   taker        8 bytes: the call that took the units
--   5   holders      8 bytes for each call that relies on the units; the last to let go refunds them
--   6   replays      integer: times that the reply was repeated
--   7   at           integer, µs: time of the reply
--   8   expires_at   integer, µs: time from which the record has no effect
-- then for each hit the time by which it was decided (integer, µs), then the values of all hits, as in
-- the reply

local FORMAT, HEADER = 1, 8
local MAX_REPLAYS = 8

-- Purposes of a request with an id. 0 decides.
local CONFIRM, UNDO = 1, 2

-- Codes of the reply.
local REPLAYED, OTHER_REQUEST, TOO_MANY_REPLAYS, OTHER_RULES = 3, 4, 5, 6

-- Reads the request id from the values of a request: see check.lua.
local function parse_once(values, at)
  once = {
    fingerprint = values[at + 1], hits = values[at + 2], call = values[at + 3],
    purpose = values[at + 4], ttl = values[at + 5],
    key = false, answer = false, is_written = false, is_last = false,
  }
end

-- Returns the values of the record; nil if there is none, or it has no effect any more.
local function load_record()
  local text = read('GET', once.key)
  if type(text) ~= 'string' then return end
  local ok, values = pcall(function() return { cmsgpack.unpack(text) } end)
  if not ok or type(values[1]) ~= 'number' then return end
  if values[1] == FORMAT and time >= values[8] then return end
  return values
end

local function save_record(values, ...)
  redis.call('SET', once.key, cmsgpack.pack(unpack(values)), ...)
  once.is_written = true
end

-- Returns the holders without this call, and whether it was among them.
local function without_call(holders)
  local others, found = {}, false
  for i = 1, #holders, 8 do
    local holder = holders:sub(i, i + 7)
    if holder == once.call then found = true else others[#others + 1] = holder end
  end
  return table.concat(others), found
end

-- Lets go of the units. Unless this call was the last holder, the refunds become looks.
local function let_go(values)
  local others, found = '', false
  if values then others, found = without_call(values[5]) end
  once.is_last = found and others == ''
  if once.is_last then return end
  if found then
    values[5] = others
    save_record(values, 'KEEPTTL')
  end
  for i = 1, count do
    local hit = hits[i]
    hit.action, hit.cost, hit.taken = 0, 0, false
  end
end

-- Returns the answer to a request by the record.
local function repeat_reply(values)
  if values[1] ~= FORMAT then return { OTHER_RULES } end
  if values[2] ~= once.fingerprint then return { OTHER_REQUEST } end
  if values[3] ~= once.hits then return { OTHER_RULES } end
  local taker = values[4]
  if once.purpose == CONFIRM then
    values[5] = without_call(values[5]) .. once.call
    save_record(values, 'KEEPTTL')
  elseif taker ~= once.call then
    if values[6] >= MAX_REPLAYS then return { TOO_MANY_REPLAYS } end
    values[6] = values[6] + 1
    save_record(values, 'KEEPTTL')
  end
  local answer = { REPLAYED, taker, values[7] }
  for i = HEADER + 1, #values do answer[i - HEADER + 3] = values[i] end
  return answer
end

-- Returns true if the record answers the request: `once.answer` then has the values of the reply.
local function recall()
  once.answer, once.is_written, once.is_last = false, false, false
  local values = load_record()
  if once.purpose == UNDO then
    let_go(values and values[1] == FORMAT and values)
  elseif values then
    once.answer = repeat_reply(values)
    return true
  end
  return false
end

-- Remembers the reply if units were taken; after an undo removes the record. Called before the states
-- are written.
local function remember()
  if once.purpose == UNDO then
    if once.is_last then
      redis.call('DEL', once.key)
      wrote = true
    end
    return
  end
  local has_taken = false
  for i = 1, count do has_taken = has_taken or hits[i].counted > 0 end
  if not has_taken then return end
  local expires_at = time + once.ttl
  local values = {
    FORMAT, once.fingerprint, once.hits, once.call, once.call, 0, time, expires_at,
  }
  for i = 1, count do values[HEADER + i] = hits[i].now end
  append_hits(values, HEADER + count)
  save_record(values, 'PXAT', integer(ceil(expires_at / 1000)))
end

-- Removes the record of a request whose states could not be written.
local function forget()
  if once.is_written and not once.answer and once.purpose ~= UNDO then
    redis.pcall('DEL', once.key)
  end
end

idempotency = { parse = parse_once, recall = recall, remember = remember, forget = forget }
