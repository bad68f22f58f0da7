-- The catalogue: documents of named fields, with one revision over all of them. One operation a call;
-- see crates/limiter/src/fleet/catalogue.
--
-- All keys are in one slot, and none has a time to live. Those marked with * belong to a generation: a
-- restored catalogue is written into keys of its own, which one step makes those of the catalogue.
--
-- KEYS[1]   HASH  head: `epoch`, `revision`, `id` (of the revision), `documents`, `counted` and
--                 `generation`, which is missing in the first one
-- KEYS[2]*  ZSET  ids of the last revisions, by revision
-- KEYS[3]   HASH  epochs that were replaced, as names
-- KEYS[4]*  ZSET  names of documents, removed ones too, by the revision that changed them last
-- KEYS[5]*  HASH  index: for each document its revision and its number of counted fields
-- KEYS[6]*  HASH  fields of the document of the operation. A counted field that is a JSON object begins
--                 with the member `revision`: that of the write which has set it
-- KEYS[7]   LIST  history of that document, newest first: revision, a space, content. A long content is
--                 in pieces: revision, '/', number of the piece from 0, '/', number of pieces, a space,
--                 and the piece
-- KEYS[8]   HASH  mark of a conflict: `since`, and `staged`, the generation that a restore writes
-- KEYS[9]   HASH  entries made beside the catalogue during a conflict
-- KEYS[10]  HASH  generations that are not those of the catalogue, as names
-- KEYS[11]  ZSET  names of removed documents, by the time of their removal in seconds
-- ARGV[1]  nonce       text, unique for each call: echoed in the reply
-- ARGV[2]  operation   text: a name in `operations`
-- ARGV[3]  epoch       text: epoch of the caller's catalogue; empty if it has none
-- ARGV[4]  revision    whole number: revision of the caller's catalogue
-- ARGV[5]  id          text: id of that revision
-- ARGV[6]  generation  text: that of the keys; empty for the first
-- ARGV[7]  and following: the arguments of the operation
--
-- Reply: an array of the nonce, and
--   'done', the generation of the catalogue, then the results of the operation; without these if the
--     keys are of another generation: then nothing was done
--   'failed', the name of a command, and the error that it met. Earlier writes are not undone.

-- Ids of revisions that are kept.
local MAX_IDS = 10000
-- Length of a piece of a history in bytes, and pieces of a document that are kept.
local PIECE_LEN, MAX_PIECES = 65536, 256
-- Bytes after which a reading call ends, so that it takes less than a millisecond.
local MAX_READ = 65536
-- Length up to which a field is short.
local SHORT = 4096
-- Entries beside the catalogue, and names of removed documents, that are kept.
local MAX_ASIDE, MAX_REMOVED = 10000, 100000
-- Members of a set that one call removes.
local MAX_CLEARED = 500
-- Arguments of one command.
local MAX_BATCH = 2000
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
  head = KEYS[1], ids = KEYS[2], replaced = KEYS[3], changes = KEYS[4], index = KEYS[5],
  document = KEYS[6], history = KEYS[7], conflict = KEYS[8], aside = KEYS[9], unused = KEYS[10],
  removed = KEYS[11],
}
local own = { epoch = ARGV[3], revision = tonumber(ARGV[4]), id = ARGV[5] }
local generation = ARGV[6]

local function whole(number)
  return string.format('%.0f', number)
end

local function head_number(field)
  return tonumber(call('HGET', keys.head, field) or '0')
end

local function now()
  return tonumber(redis.call('TIME')[1])
end

local function is_marked()
  return call('HLEN', keys.conflict) > 0
end

-- Marks a conflict, unless it is marked.
local function mark()
  if not is_marked() then
    call('HSET', keys.conflict, 'since', whole(now()))
  end
end

-- Returns how the catalogue follows the caller's: 'missing', 'first' if the caller has none, 'same',
-- 'newer', 'replaced', or 'conflict' if it does not. Then `true` if it lacks a revision of the
-- caller's own epoch.
local function relation()
  local epoch = call('HGET', keys.head, 'epoch')
  if not epoch then
    return 'missing', own.epoch ~= ''
  end
  if own.epoch == '' then
    return 'first', false
  end
  if epoch ~= own.epoch then
    return call('HEXISTS', keys.replaced, own.epoch) == 1 and 'replaced' or 'conflict', false
  end
  local revision = head_number('revision')
  local stands = tonumber(call('ZSCORE', keys.ids, own.id) or '-1') == own.revision
  if not stands then
    local oldest = call('ZRANGE', keys.ids, 0, 0, 'WITHSCORES')
    stands = oldest[2] and own.revision < tonumber(oldest[2])
  end
  if not stands or own.revision > revision then
    return 'conflict', true
  end
  return own.revision == revision and 'same' or 'newer', false
end

-- Returns the revision of a document and its number of counted fields; 0 and 0 if there is none.
local function document(name)
  local text = call('HGET', keys.index, name)
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

-- Argument: 1 if the caller has had the catalogue of this store in force, so that it marks a catalogue
-- that does not follow; it always marks one that lost a revision. Results: how the catalogue follows the
-- caller's; 1 if a conflict is marked; number of entries beside the catalogue; and unless it is missing
-- epoch, revision and id.
function operations.head(in_step)
  local follows, lost = relation()
  if lost or follows == 'conflict' and in_step == '1' then
    mark()
  end
  local head = call('HMGET', keys.head, 'epoch', 'revision', 'id')
  local marked = is_marked() and '1' or '0'
  return { follows, marked, whole(call('HLEN', keys.aside)), head[1], head[2], head[3] }
end

-- Arguments: a revision, number. Results: name and revision of each document that has changed since,
-- in the order of their revisions.
function operations.changes(since, count)
  return call('ZRANGEBYSCORE', keys.changes, '(' .. since, '+inf', 'WITHSCORES', 'LIMIT', 0, count)
end

-- Scans fields of the document from a cursor: about `count`, and fewer when they are long. HSCAN has no
-- bound of bytes, so it is asked for few at a time. Returns the next cursor, and names and contents in
-- turn.
local function scan(cursor, count)
  local found, length, longest = {}, 0, 0
  for _ = 1, count do
    local step = #found > 0 and longest <= SHORT and 4 or 1
    local page = call('HSCAN', keys.document, cursor, 'COUNT', step)
    cursor = page[1]
    for i = 1, #page[2] do
      found[#found + 1] = page[2][i]
      length = length + #page[2][i]
      longest = math.max(longest, #page[2][i])
    end
    if cursor == '0' or length >= MAX_READ or #found >= 2 * count then break end
  end
  return cursor, found
end

-- Arguments: name of the document, cursor, about how many fields at most. Results: revision of the
-- document, 0 if there is none; the next cursor, '0' at the end; names and contents in turn.
function operations.page(name, cursor, count)
  local revision = document(name)
  local next_cursor, found = scan(cursor, tonumber(count))
  local results = { whole(revision), next_cursor }
  for i = 1, #found do
    results[i + 2] = found[i]
  end
  return results
end

-- Arguments: position in the document's history, from 0 for the newest; how many pieces at most.
-- Results: pieces from there on, fewer when they are long; none at the end.
function operations.history(position, count)
  local results, length = {}, 0
  for at = tonumber(position), position + count - 1 do
    local piece = call('LRANGE', keys.history, at, at)[1]
    if not piece then break end
    results[#results + 1] = piece
    length = length + #piece
    if length >= MAX_READ then break end
  end
  return results
end

-- Adds an entry to the document's history.
local function add_to_history(revision, entry)
  local pieces = math.ceil(#entry / PIECE_LEN)
  for piece = pieces - 1, 0, -1 do
    local place = pieces == 1 and '' or string.format('/%d/%d', piece, pieces)
    local content = string.sub(entry, piece * PIECE_LEN + 1, (piece + 1) * PIECE_LEN)
    call('LPUSH', keys.history, revision .. place .. ' ' .. content)
  end
  call('LTRIM', keys.history, 0, MAX_PIECES - 1)
end

-- Returns how many counted fields a write adds to the document: arguments `first_set` to `last_set` are
-- names and contents in turn, those from `first_delete` to `last_delete` names to delete.
local function number_added(first_set, last_set, first_delete, last_delete)
  local added = 0
  for i = first_set, last_set, 2 do
    if is_counted(ARGV[i]) then
      added = added + 1 - call('HEXISTS', keys.document, ARGV[i])
    end
  end
  for i = first_delete, last_delete do
    if is_counted(ARGV[i]) then
      added = added - call('HEXISTS', keys.document, ARGV[i])
    end
  end
  return added
end

-- Returns the content of a counted field as a write of this revision stores it.
local function stamped(content, revision)
  if string.sub(content, 1, 2) ~= '{"' then
    return content
  end
  return '{"revision":' .. revision .. ',' .. string.sub(content, 2)
end

-- Runs HSET or HDEL of the document with the arguments `first` to `last`, of which `width` belong
-- together and the first one of them is a name. Many at once: thousands of calls would hold Redis for
-- several times as long. Returns how many counted fields were added or deleted.
local function in_batches(command, first, last, width, revision)
  local counted, batch = 0, {}
  for i = first, last, width do
    if is_counted(ARGV[i]) then
      batch[#batch + 1] = ARGV[i]
      if width == 2 then batch[#batch + 1] = stamped(ARGV[i + 1], revision) end
    else
      call(command, keys.document, unpack(ARGV, i, i + width - 1))
    end
    if #batch >= MAX_BATCH or i + width > last and #batch > 0 then
      counted, batch = counted + call(command, keys.document, unpack(batch)), {}
    end
  end
  return counted
end

-- Writes a document. Arguments: its name; its revision as the caller knows it, 0 for none; id of the
-- new revision; epoch for a new catalogue; most documents; most counted fields of all documents; an
-- entry for the history, or empty; 1 to remove the document; seconds for which a removed one is not
-- made again; how many fields to set; their names and contents in turn; names of fields to delete.
-- Results: 'written' and the new revision; 'raced' and the document's revision; 'documents' or 'fields'
-- if there would be too many; 'removed' if it was; or 'conflict'.
function operations.write(name, expected, id, epoch, documents, fields, entry, removes, rest, sets)
  -- Not arguments of the function, which may be 8,000 at most.
  local first_set, first_delete = 17, 17 + sets * 2
  local follows = relation()
  if is_marked() then
    return { 'conflict' }
  end
  if follows == 'missing' and own.epoch == '' then
    call('HSET', keys.head, 'epoch', epoch)
  elseif follows ~= 'same' and follows ~= 'newer' then
    return { 'conflict' }
  end
  local revision, before = document(name)
  if revision ~= tonumber(expected) then
    return { 'raced', whole(revision) }
  end
  removes = removes == '1'
  if revision == 0 and not removes then
    local removed = call('ZSCORE', keys.removed, name)
    if removed and now() - tonumber(removed) < tonumber(rest) then
      return { 'removed' }
    end
  end
  local last_set, last_delete = first_delete - 1, #ARGV
  local in_all = head_number('documents') + (removes and 0 or 1) - (revision > 0 and 1 or 0)
  if not removes and revision == 0 and in_all > tonumber(documents) then
    return { 'documents' }
  end
  local counted_in_all = head_number('counted')
  if not removes and counted_in_all + (last_set - first_set + 1) / 2 > tonumber(fields) then
    local added = number_added(first_set, last_set, first_delete, last_delete)
    if added > 0 and counted_in_all + added > tonumber(fields) then
      return { 'fields' }
    end
  end

  local new = whole(head_number('revision') + 1)
  if removes then
    call('DEL', keys.document)
    call('DEL', keys.history)
    call('HDEL', keys.index, name)
    call('ZADD', keys.removed, now(), name)
    call('ZREMRANGEBYRANK', keys.removed, 0, -MAX_REMOVED - 1)
    counted_in_all = counted_in_all - before
  else
    local added = in_batches('HSET', first_set, last_set, 2, new)
    added = added - in_batches('HDEL', first_delete, last_delete, 1, new)
    counted_in_all = counted_in_all + added
    call('HSET', keys.index, name, new .. ' ' .. whole(before + added))
    if entry ~= '' then
      add_to_history(new, entry)
    end
  end
  call('HSET', keys.head, 'revision', new, 'id', id,
    'documents', whole(in_all), 'counted', whole(counted_in_all))
  call('ZADD', keys.changes, new, name)
  call('ZADD', keys.ids, new, id)
  call('ZREMRANGEBYRANK', keys.ids, 0, -MAX_IDS - 1)
  call('PUBLISH', keys.head, new)
  return { 'written', new }
end

-- Arguments: cursor, about how many. Results: the next cursor, then names and contents of entries beside
-- the catalogue in turn.
function operations.aside(cursor, count)
  local page = call('HSCAN', keys.aside, cursor, 'COUNT', count)
  local results = { page[1] }
  for i = 1, #page[2] do
    results[i + 1] = page[2][i]
  end
  return results
end

-- Sets entries beside the catalogue, all or none. Arguments: names and contents in turn. Results:
-- 'written', 'full', or 'no_conflict'.
function operations.set_aside()
  if not is_marked() then
    return { 'no_conflict' }
  end
  local added = 0
  for i = 7, #ARGV, 2 do
    added = added + 1 - call('HEXISTS', keys.aside, ARGV[i])
  end
  if added > 0 and call('HLEN', keys.aside) + added > MAX_ASIDE then
    return { 'full' }
  end
  for i = 7, #ARGV, 2 do
    call('HSET', keys.aside, ARGV[i], ARGV[i + 1])
  end
  call('PUBLISH', keys.head, 'aside')
  return { 'written' }
end

-- Results: the epochs that were replaced.
function operations.replaced()
  local all = call('HGETALL', keys.replaced)
  local results = {}
  for i = 1, #all, 2 do
    results[#results + 1] = all[i]
  end
  return results
end

-- Results: the generations that are not used.
function operations.unused()
  local all = call('HGETALL', keys.unused)
  local results = {}
  for i = 1, #all, 2 do
    results[#results + 1] = all[i]
  end
  return results
end

-- Begins a restore into a generation; an earlier one can't go on. Argument: the generation. Results:
-- 'begun' or 'no_conflict'.
function operations.begin(staged)
  local follows = relation()
  if not is_marked() and follows ~= 'conflict' and (follows ~= 'missing' or own.epoch == '') then
    return { 'no_conflict' }
  end
  mark()
  call('HSET', keys.conflict, 'staged', staged)
  call('HSET', keys.unused, staged, '')
  return { 'begun' }
end

-- Operations on a generation that is not that of the catalogue: KEYS are those of this one.
local staging = {}

local function is_staged()
  return call('HGET', keys.conflict, 'staged') == generation
end

-- Writes fields of a document. Arguments: its name, revision and number of counted fields; 1 to forget
-- its history; names and contents in turn. Results: 'staged' or 'changed'.
function staging.stage(name, revision, counted, forgets)
  if not is_staged() then
    return { 'changed' }
  end
  if forgets == '1' then
    call('DEL', keys.history)
  end
  for i = 11, #ARGV, 2 do
    call('HSET', keys.document, ARGV[i], ARGV[i + 1])
  end
  call('HSET', keys.index, name, revision .. ' ' .. counted)
  call('ZADD', keys.changes, revision, name)
  return { 'staged' }
end

-- Forgets a document that the generation lacks. Argument: its name. Results: 'staged' or 'changed'.
function staging.omit(name)
  if not is_staged() then
    return { 'changed' }
  end
  call('DEL', keys.history)
  call('ZADD', keys.removed, now(), name)
  return { 'staged' }
end

-- Makes the generation that of the catalogue. The caller's catalogue is that which the store had when
-- it was read. Arguments: new epoch, revision and id; number of documents, and of counted fields; number
-- of entries beside the catalogue; epochs that are replaced. Results: 'switched' or 'changed'.
function staging.switch(epoch, revision, id, documents, counted, aside)
  local head = call('HMGET', keys.head, 'epoch', 'revision', 'id', 'generation')
  local is_seen = (head[1] or '') == own.epoch and tonumber(head[2] or '0') == own.revision
    and (head[3] or '') == own.id
  if not is_staged() or not is_seen or call('HLEN', keys.aside) ~= tonumber(aside) then
    return { 'changed' }
  end
  for i = 13, #ARGV do
    call('HSET', keys.replaced, ARGV[i], '')
  end
  call('ZADD', keys.ids, revision, id)
  call('HSET', keys.unused, head[4] or '', '')
  call('HDEL', keys.unused, generation)
  call('HSET', keys.head, 'epoch', epoch, 'revision', revision, 'id', id,
    'documents', documents, 'counted', counted, 'generation', generation)
  call('DEL', keys.conflict)
  call('DEL', keys.aside)
  call('PUBLISH', keys.head, 'restored')
  return { 'switched' }
end

local function may_clear()
  return call('HEXISTS', keys.unused, generation) == 1 and not is_staged()
end

-- Arguments: cursor, about how many. Results: the next cursor, then names of documents.
function staging.names(cursor, count)
  local page = call('HSCAN', keys.index, cursor, 'COUNT', count)
  local results = { page[1] }
  for i = 1, #page[2], 2 do
    results[#results + 1] = page[2][i]
  end
  return results
end

-- Removes fields of a document that nobody reads. Arguments: its name, cursor, about how many. Results:
-- the next cursor.
function staging.clear(name, cursor, count)
  if not may_clear() then
    return { '0' }
  end
  local next_cursor, found = scan(cursor, tonumber(count))
  for i = 1, #found, 2 do
    call('HDEL', keys.document, found[i])
  end
  if next_cursor == '0' then
    call('HDEL', keys.index, name)
  end
  return { next_cursor }
end

-- Removes some of what a generation has beside documents. Results: the number of members removed; 0:
-- nothing is left.
function staging.forget()
  if not may_clear() then
    return { '0' }
  end
  local removed = call('ZREMRANGEBYRANK', keys.changes, 0, MAX_CLEARED - 1)
  removed = removed + call('ZREMRANGEBYRANK', keys.ids, 0, MAX_CLEARED - 1)
  if removed == 0 then
    call('HDEL', keys.unused, generation)
  end
  return { whole(removed) }
end

local function run()
  local current = call('HGET', keys.head, 'generation') or ''
  local reply = { ARGV[1], 'done', current }
  local operation = operations[ARGV[2]]
  if operation and current ~= generation then
    return reply
  end
  operation = operation or staging[ARGV[2]]
  local results = operation(unpack(ARGV, 7, math.min(#ARGV, 16)))
  for i = 1, #results do
    reply[i + 3] = results[i]
  end
  return reply
end

local ended, reply = pcall(run)
if not ended then
  return failed or redis.error_reply('ERR ' .. tostring(reply))
end
return reply
