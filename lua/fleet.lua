-- What instances share beside decisions: logs, named values, messages and secrets. One operation a
-- call; see crates/limiter/src/fleet.
--
-- KEYS[1]  the key of the operation; for `publish` the name of the channel, for `permissions` a key
--          of its own, which is removed again
-- KEYS[2]  for `append`, if the entry is of a project: the log of the project; for `append_once` the mark
-- ARGV[1]  nonce       text, unique for each call: echoed in the reply
-- ARGV[2]  operation   text: a name in `operations`
-- ARGV[3]  and following: the arguments of the operation
--
-- Reply: an array of the nonce, and
--   'done', then the results of the operation
--   'failed', the name of a command, the error that it met, and its key. Earlier writes are not undone.

-- A command that failed.
local failed

-- Runs a command. An error ends the operation, and names the command.
local function call(command, key, ...)
  local reply = redis.pcall(command, key, ...)
  if type(reply) == 'table' and reply.err then
    failed = { ARGV[1], 'failed', command, reply.err, key }
    error(failed)
  end
  return reply
end

-- Returns the time in whole milliseconds.
local function now_millis()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Splits a value of a map, `END CONTENT`: when it expires in milliseconds, and its content.
local function split(value)
  local ends, content = string.match(value, '^(%d+) (.*)$')
  return tonumber(ends) or 0, content
end

local operations = {}

-- Returns the id of the newest entry of a stream: milliseconds, and the number within them.
local function newest_id(key)
  local newest = call('XREVRANGE', key, '+', '-', 'COUNT', '1')[1]
  if not newest then return 0, 0 end
  local millis, sequence = string.match(newest[1], '^(%d+)-(%d+)$')
  return tonumber(millis), tonumber(sequence)
end

-- Adds an entry to a stream. Returns its id.
local function add(key, most, id, content)
  return call('XADD', key, 'MAXLEN', '~', most, id, 'e', content)
end

-- Adds an entry to two streams under one id, which is above all of both. Returns the id.
local function add_to_both(key, most, other, most_of_other, content)
  local millis, sequence = newest_id(key)
  local other_millis, other_sequence = newest_id(other)
  local is_behind = millis < other_millis or (millis == other_millis and sequence < other_sequence)
  if is_behind then
    local id = add(other, most_of_other, '*', content)
    return add(key, most, id, content)
  end
  local id = add(key, most, '*', content)
  return add(other, most_of_other, id, content)
end

-- STREAM: appends an entry, to the log of its project, too. Arguments: maximum number of entries,
-- content; with a project the maximum of its log, and the log's time to live in ms, 0: none.
-- Result: the id.
function operations.append(key, most, content, most_of_project, ttl)
  local project = KEYS[2]
  if not project then return { add(key, most, '*', content) } end
  local id = add_to_both(key, most, project, most_of_project, content)
  if tonumber(ttl) > 0 then
    local ends = string.format('%.0f', now_millis() + ttl)
    call('PEXPIREAT', project, ends)
  elseif call('PTTL', project) >= 0 then
    call('PERSIST', project)
  end
  return { id }
end

-- STREAM: appends an entry, unless there is the mark KEYS[2], and keeps the stream for 366 days. Arguments: maximum
-- number of entries, content, the end of the mark in ms since the epoch. Result: 1, or 0 if there was one.
function operations.append_once(key, most, content, ends)
  local mark = KEYS[2]
  if call('GET', mark) then return { 0 } end
  add(key, most, '*', content)
  call('PEXPIREAT', key, string.format('%.0f', now_millis() + 31622400000))
  call('SET', mark, '1', 'PXAT', ends)
  return { 1 }
end

-- Reads entries, newest first. Arguments: largest and smallest id, number. Results: the entries.
function operations.read(key, last, first, count)
  return call('XREVRANGE', key, last, first, 'COUNT', count)
end

-- HASH: sets a value. Arguments: name, content, time to live in ms, maximum number of values.
-- Result: 1, or 0 if the map is full.
function operations.put(key, name, content, ttl, most)
  local now = now_millis()
  if call('HLEN', key) >= tonumber(most) and not call('HGET', key, name) then
    local fields = call('HGETALL', key)
    for i = 1, #fields, 2 do
      if split(fields[i + 1]) <= now then
        call('HDEL', key, fields[i])
      end
    end
    if call('HLEN', key) >= tonumber(most) then
      return { 0 }
    end
  end
  local ends = now + ttl
  call('HSET', key, name, string.format('%.0f ', ends) .. content)
  if call('PTTL', key) < tonumber(ttl) then
    call('PEXPIREAT', key, string.format('%.0f', ends))
  end
  return { 1 }
end

-- HASH: sets a value unless there is one that has not expired. Arguments: as of `put`; content of a value
-- that is replaced all the same. Results: the result of `put`; or 2, and the content of the other value.
function operations.claim(key, name, content, ttl, most, over)
  local other = call('HGET', key, name)
  if other then
    local ends, held = split(other)
    if ends > now_millis() and held ~= over then return { 2, held } end
  end
  return operations.put(key, name, content, ttl, most)
end

-- Results: name, content and remaining time in ms of each value that has not expired.
function operations.values(key)
  local now, live = now_millis(), {}
  local fields = call('HGETALL', key)
  for i = 1, #fields, 2 do
    local ends, content = split(fields[i + 1])
    if ends > now then
      live[#live + 1] = fields[i]
      live[#live + 1] = content
      live[#live + 1] = ends - now
    end
  end
  return live
end

-- Argument: the message.
function operations.publish(key, message)
  return { call('PUBLISH', key, message) }
end

-- STRING: sets a secret unless there is one. Argument: the secret to set. Result: the secret.
function operations.secret(key, candidate)
  local secret = call('GET', key)
  if not secret then
    call('SET', key, candidate)
    secret = candidate
  end
  return { secret }
end

-- Tries each command that the operations need, and the channels. Arguments: names of channels.
-- Results: a command, its key or channel, and its error, for each that failed.
function operations.permissions(key, ...)
  local failures = {}
  local function try(command, key, ...)
    local reply = redis.pcall(command, key, ...)
    if type(reply) == 'table' and reply.err then
      failures[#failures + 1] = command
      failures[#failures + 1] = key
      failures[#failures + 1] = reply.err
    end
    return reply
  end
  try('HSET', key, 'a', 'b')
  try('HGET', key, 'a')
  try('HLEN', key)
  try('HGETALL', key)
  try('HDEL', key, 'a')
  try('DEL', key)
  try('XADD', key, 'MAXLEN', '~', '1', '*', 'e', '')
  try('XREVRANGE', key, '+', '-', 'COUNT', '1')
  try('PERSIST', key)
  try('DEL', key)
  for _, channel in ipairs({ ... }) do
    try('PUBLISH', channel, '')
  end
  return failures
end

local operation = operations[ARGV[2]]
local ended, results = pcall(operation, KEYS[1], unpack(ARGV, 3))
if not ended then
  return failed or redis.error_reply('ERR ' .. tostring(results))
end
local reply = { ARGV[1], 'done' }
for i = 1, #results do
  reply[i + 2] = results[i]
end
return reply
