-- The catalogue: documents of named fields, with one revision over all of them. One operation a call;
-- see crates/limiter/src/fleet/catalogue.
--
-- All keys are in one slot, and none has a time to live.
--
-- KEYS[1]  HASH  head: `epoch`, `revision`, `id` (of the revision), `documents`, `counted`, and for
--                each document `d:NAME` its revision and its number of counted fields
-- KEYS[2]  ZSET  ids of the last revisions, by revision
-- KEYS[3]  SET   epochs that were replaced
-- KEYS[4]  ZSET  names of documents, removed ones too, by the revision that changed them last
-- KEYS[5]  HASH  fields of the document of the operation
-- KEYS[6]  LIST  history of that document, newest first: revision, a space, content
-- ARGV[1]  nonce       text, unique for each call: echoed in the reply
-- ARGV[2]  operation   text: a name in `operations`
-- ARGV[3]  epoch       text: epoch of the caller's catalogue; empty if it has none
-- ARGV[4]  revision    whole number: revision of the caller's catalogue
-- ARGV[5]  id          text: id of that revision
-- ARGV[6]  and following: the arguments of the operation
--
-- Reply: an array of the nonce, and
--   'done', then the results of the operation
--   'failed', the name of a command, and the error that it met. Earlier writes are not undone.

-- Ids of revisions that are kept.
local MAX_IDS = 10000
-- Entries of a document's history that are kept.
local MAX_HISTORY = 100
-- Begins the names of fields that are counted.
local COUNTED = 'rule:'

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

local keys = {
  head = KEYS[1], ids = KEYS[2], replaced = KEYS[3], changes = KEYS[4],
  document = KEYS[5], history = KEYS[6],
}
local own = { epoch = ARGV[3], revision = tonumber(ARGV[4]), id = ARGV[5] }

local function head_number(field)
  return tonumber(call('HGET', keys.head, field) or '0')
end

-- Returns how the catalogue follows the caller's: 'missing', 'first' if the caller has none, 'same',
-- 'newer', 'replaced', or 'conflict' if it does not.
local function relation()
  local epoch = call('HGET', keys.head, 'epoch')
  if not epoch then
    return 'missing'
  end
  if own.epoch == '' then
    return 'first'
  end
  if epoch ~= own.epoch then
    return call('SISMEMBER', keys.replaced, own.epoch) == 1 and 'replaced' or 'conflict'
  end
  local revision = head_number('revision')
  local stands = tonumber(call('ZSCORE', keys.ids, own.id) or '-1') == own.revision
  if not stands then
    local oldest = call('ZRANGE', keys.ids, 0, 0, 'WITHSCORES')
    stands = oldest[2] and own.revision < tonumber(oldest[2])
  end
  if not stands or own.revision > revision then
    return 'conflict'
  end
  return own.revision == revision and 'same' or 'newer'
end

-- Returns the revision of a document and its number of counted fields; 0 and 0 if there is none.
local function document(name)
  local text = call('HGET', keys.head, 'd:' .. name)
  if not text then
    return 0, 0
  end
  local revision, counted = string.match(text, '^(%d+) (%d+)$')
  return tonumber(revision), tonumber(counted)
end

local function is_counted(field)
  return string.sub(field, 1, #COUNTED) == COUNTED
end

local operations = {}

-- Results: how the catalogue follows the caller's; and unless it is missing epoch, revision and id.
function operations.head()
  local relation = relation()
  if relation == 'missing' then
    return { relation }
  end
  local head = call('HMGET', keys.head, 'epoch', 'revision', 'id')
  return { relation, head[1], head[2], head[3] }
end

-- Arguments: a revision, number. Results: name and revision of each document that has changed since,
-- in the order of their revisions.
function operations.changes(since, count)
  return call('ZRANGEBYSCORE', keys.changes, '(' .. since, '+inf', 'WITHSCORES', 'LIMIT', 0, count)
end

-- Arguments: name of the document, cursor, about how many fields. Results: revision of the document,
-- 0 if there is none; the next cursor, '0' at the end; names and contents in turn.
function operations.page(name, cursor, count)
  local revision = document(name)
  local page = call('HSCAN', keys.document, cursor, 'COUNT', count)
  local results = { string.format('%.0f', revision), page[1] }
  for i = 1, #page[2] do
    results[i + 2] = page[2][i]
  end
  return results
end

-- Arguments: number. Results: entries of the document's history, newest first.
function operations.history(count)
  return call('LRANGE', keys.history, 0, count - 1)
end

-- Writes a document. Arguments: its name; its revision as the caller knows it, 0 for none; id of the
-- new revision; epoch for a new catalogue; most documents; most counted fields of all documents; an
-- entry for the history, or empty; 1 to remove the document; how many fields to set; their names and
-- contents in turn; names of fields to delete. Results: 'written' and the new revision; 'raced' and
-- the document's revision; 'documents' or 'fields' if there would be too many; or 'conflict'.
function operations.write(name, expected, id, epoch, documents, fields, entry, removes, sets)
  -- Not arguments of the function, which may be 8,000 at most.
  local first_set, first_delete = 15, 15 + sets * 2
  local follows = relation()
  if follows == 'missing' and own.epoch == '' then
    call('HSET', keys.head, 'epoch', epoch)
  elseif follows ~= 'same' and follows ~= 'newer' then
    return { 'conflict' }
  end
  local revision, before = document(name)
  if revision ~= tonumber(expected) then
    return { 'raced', string.format('%.0f', revision) }
  end
  removes = removes == '1'
  local counted = removes and 0 or before
  if not removes then
    for i = first_set, first_delete - 1, 2 do
      if is_counted(ARGV[i]) and call('HEXISTS', keys.document, ARGV[i]) == 0 then
        counted = counted + 1
      end
    end
    for i = first_delete, #ARGV do
      if is_counted(ARGV[i]) then
        counted = counted - call('HEXISTS', keys.document, ARGV[i])
      end
    end
  end
  local in_all = head_number('documents') + (removes and 0 or 1) - (revision > 0 and 1 or 0)
  if not removes and revision == 0 and in_all > tonumber(documents) then
    return { 'documents' }
  end
  local counted_in_all = head_number('counted') + counted - before
  if counted > before and counted_in_all > tonumber(fields) then
    return { 'fields' }
  end

  local new = string.format('%.0f', head_number('revision') + 1)
  if removes then
    call('DEL', keys.document)
    call('DEL', keys.history)
    call('HDEL', keys.head, 'd:' .. name)
  else
    for i = first_set, first_delete - 1, 2 do
      call('HSET', keys.document, ARGV[i], ARGV[i + 1])
    end
    for i = first_delete, #ARGV do
      call('HDEL', keys.document, ARGV[i])
    end
    call('HSET', keys.head, 'd:' .. name, new .. ' ' .. string.format('%.0f', counted))
    if entry ~= '' then
      call('LPUSH', keys.history, new .. ' ' .. entry)
      call('LTRIM', keys.history, 0, MAX_HISTORY - 1)
    end
  end
  call('HSET', keys.head, 'revision', new, 'id', id,
    'documents', string.format('%.0f', in_all), 'counted', string.format('%.0f', counted_in_all))
  call('ZADD', keys.changes, new, name)
  call('ZADD', keys.ids, new, id)
  call('ZREMRANGEBYRANK', keys.ids, 0, -MAX_IDS - 1)
  call('PUBLISH', keys.head, new)
  return { 'written', new }
end

local operation = operations[ARGV[2]]
local ended, results = pcall(operation, unpack(ARGV, 6, math.min(#ARGV, 14)))
if not ended then
  return failed or redis.error_reply('ERR ' .. tostring(results))
end
local reply = { ARGV[1], 'done' }
for i = 1, #results do
  reply[i + 2] = results[i]
end
return reply
