-- Registers: named values of maps, each of which only grows. Many maps a call; see
-- crates/limiter/src/fleet/registers.rs.
--
-- KEYS[…]  HASH  a map; several may be the same. In a cluster they are in one slot
-- ARGV[1]  nonce       text, unique for each call: echoed in the reply
-- ARGV[2]  operation   text: a name in `operations`
-- ARGV[3]  and following: the arguments of the operation
--
-- Reply: an array of the nonce, and
--   'done', then a result for each key
--   'failed', the name of a command, and the error that it met. Earlier writes are not undone.

-- A command that failed.
local failed

-- Runs a command. An error ends the operation, and names the command.
local function call(command, key, ...)
  local reply = redis.pcall(command, key, ...)
  if type(reply) == 'table' and reply.err then
    failed = { ARGV[1], 'failed', command, reply.err }
    error(failed)
  end
  return reply
end

-- Compares texts by bytes: the operators of Lua compare by the locale of the server.
local function is_below(one, other)
  for i = 1, math.min(#one, #other) do
    local a, b = string.byte(one, i), string.byte(other, i)
    if a ~= b then return a < b end
  end
  return #one < #other
end

local operations = {}

-- Sets a value for each key, unless the name has a larger one. Arguments: time to live of the maps in
-- ms, maximum number of values of a map; then name and value for each key. Results: 1 if the name had
-- a value, 0 if not, or -1 if the map is full.
function operations.raise(ttl, most, ...)
  local given, results = { ... }, {}
  local time = redis.call('TIME')
  local ends = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000) + ttl)
  for i, key in ipairs(KEYS) do
    local name, value = given[2 * i - 1], given[2 * i]
    local before = call('HGET', key, name)
    if not before and call('HLEN', key) >= tonumber(most) then
      results[i] = -1
    else
      if not before or is_below(before, value) then
        call('HSET', key, name, value)
      end
      call('PEXPIREAT', key, ends)
      results[i] = before and 1 or 0
    end
  end
  return results
end

-- Reads a page of each map. Arguments: cursor, number of values, about. Results: the next cursor, and
-- names and values.
function operations.page(cursor, count)
  local pages = {}
  for i, key in ipairs(KEYS) do
    pages[i] = call('HSCAN', key, cursor, 'COUNT', count)
  end
  return pages
end

-- Removes the maps. Results: 1 if there was a map, else 0.
function operations.remove()
  local results = {}
  for i, key in ipairs(KEYS) do
    results[i] = call('DEL', key)
  end
  return results
end

local ended, results = pcall(operations[ARGV[2]], unpack(ARGV, 3))
if not ended then
  return failed or redis.error_reply('ERR ' .. tostring(results))
end
local reply = { ARGV[1], 'done' }
for i = 1, #results do
  reply[i + 2] = results[i]
end
return reply
