-- The catalogue: documents of named fields, with one revision over all of them. One operation a call;
-- see crates/limiter/src/fleet/catalogue.
--
-- All keys are in one slot, and none has a time to live. Those marked with * belong to a generation: a
-- restored catalogue is written into keys of its own, which one step makes those of the catalogue.
--
-- KEYS[1]   HASH  head: `format`, `epoch`, `revision`, `id` (of the revision), `lineage` (the last epochs
--                 that this one has replaced, newest first, each with ':' and its revision then, between
--                 spaces), `documents`, `counted`, `generation`, which is missing in the first one, and
--                 `staged`, the generation that a restore writes
-- KEYS[2]   ZSET  ids of the last revisions, by revision
-- KEYS[3]*  ZSET  names of documents, removed ones too, by the revision that changed them last
-- KEYS[4]*  HASH  index: for each document its revision and its number of counted fields
-- KEYS[5]*  HASH  fields of the document of the operation. A counted field that is a JSON object begins
--                 with the member `revision`: that of the write which has set it
-- KEYS[6]   LIST  history of that document, newest first: revision, a space, content. A long content is
--                 in pieces: revision, '/', number of the piece from 0, '/', number of pieces, a space,
--                 and the piece
-- KEYS[7]   HASH  marks of a conflict: for each epoch whose last revision the catalogue lacks the
--                 instance that says so, this revision, the time in seconds, and the epoch's lineage
-- KEYS[8]   HASH  generations that are not those of the catalogue, as names
-- KEYS[9]   ZSET  names of removed documents, by the time of their removal in seconds
-- KEYS[10]  ZSET  ended keys, by their number. It only grows, but for those that are forgotten
-- KEYS[11]  ZSET  ids of the last additions to them, by the number of the last ended key of each
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

-- Of this script. The one before had no number.
local FORMAT = '2'
-- Ids of revisions, and of additions to the ended keys, that are kept.
local MAX_IDS = 1000
-- Ended keys, and marks, that are kept.
local MAX_ENDED, MAX_MARKS = 100000, 16
-- Length of a piece of a history in bytes, and pieces of a document that are kept.
local PIECE_LEN, MAX_PIECES = 65536, 256
-- Bytes after which a reading call ends, so that it takes less than a millisecond.
local MAX_READ = 65536
-- Length up to which a field is short.
local SHORT = 4096
-- Names of removed documents that are kept.
local MAX_REMOVED = 100000
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
  head = KEYS[1], ids = KEYS[2], changes = KEYS[3], index = KEYS[4], document = KEYS[5],
  history = KEYS[6], conflict = KEYS[7], unused = KEYS[8], removed = KEYS[9], ended = KEYS[10],
  ended_ids = KEYS[11],
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

-- Marks that the catalogue lacks the last revision of the caller's.
local function mark(instance, lineage)
  local marked = call('HGET', keys.conflict, own.epoch)
  local revision = marked and tonumber(string.match(marked, '^%S+ (%d+)')) or -1
  if revision < own.revision and (marked or call('HLEN', keys.conflict) < MAX_MARKS) then
    local text = string.format('%s %.0f %.0f %s', instance, own.revision, now(), lineage)
    call('HSET', keys.conflict, own.epoch, text)
  end
end

-- Returns how the catalogue follows the caller's, which has this lineage: 'missing' if there is none,
-- 'first' if the caller has none, 'same', 'newer', 'unchecked' (newer, and the caller's revision is
-- older than the ids), 'replaced', 'lost' if it lacks the caller's revision, or 'foreign' if neither
-- knows the other.
local function relation(lineage)
  local head = call('HMGET', keys.head, 'epoch', 'revision', 'lineage')
  local epoch, revision = head[1], tonumber(head[2] or '0')
  if own.epoch == '' then
    return epoch and 'first' or 'missing'
  elseif not epoch then
    return 'lost'
  elseif epoch ~= own.epoch then
    if string.find(head[3], own.epoch, 1, true) then return 'replaced' end
    return string.find(lineage, epoch, 1, true) and 'lost' or 'foreign'
  elseif own.revision > revision then
    return 'lost'
  elseif tonumber(call('ZSCORE', keys.ids, own.id) or '-1') == own.revision then
    return own.revision == revision and 'same' or 'newer'
  end
  local oldest = call('ZRANGE', keys.ids, 0, 0, 'WITHSCORES')[2]
  return oldest and own.revision < tonumber(oldest) and 'unchecked' or 'lost'
end

-- Returns the id of the last addition to the ended keys, and its number; '' and 0 if there is none.
local function last_ended()
  local last = call('ZRANGE', keys.ended_ids, -1, -1, 'WITHSCORES')
  return last[1] or '', tonumber(last[2] or '0')
end

-- Adds arguments to the ended keys, as far as there is room. Returns '1' if there is not enough.
local function add_ended(first, last)
  local _, before = last_ended()
  local number, room, full = before, MAX_ENDED - call('ZCARD', keys.ended), '0'
  for i = first, last do
    if not call('ZSCORE', keys.ended, ARGV[i]) then
      if number - before < room then
        number = number + 1
        call('ZADD', keys.ended, number, ARGV[i])
      else
        full = '1'
      end
    end
  end
  if number > before then
    call('ZADD', keys.ended_ids, number, ARGV[1])
    call('ZREMRANGEBYRANK', keys.ended_ids, 0, -MAX_IDS - 1)
    call('PUBLISH', keys.head, 'ended')
  end
  return full
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

-- Arguments: lineage of the caller's catalogue; id of the ended keys that it has; its name if it marks a
-- catalogue that lacks its own, else empty; 1 if it also marks one of which neither knows the other.
-- It marks nothing before it has all ended keys, and the store has its own. Results: how the catalogue
-- follows the caller's; number of marks; id of the ended keys; and unless the catalogue is missing
-- epoch, revision, id and lineage.
function operations.head(lineage, ended, instance, marks_foreign)
  local follows, newest = relation(lineage), last_ended()
  local is_marked_now = follows == 'lost' or follows == 'foreign' and marks_foreign == '1'
  if is_marked_now and instance ~= '' and ended == newest then
    mark(instance, lineage)
  end
  local head = call('HMGET', keys.head, 'epoch', 'revision', 'id', 'lineage')
  local marks = whole(call('HLEN', keys.conflict))
  return { follows, marks, newest, head[1], head[2], head[3], head[4] }
end

-- Arguments: id of the ended keys that the caller has; number of the last one that it has read since, or
-- empty; how many at most. Results: time in seconds; id of the ended keys; 1 if the store does not know
-- the caller's id, so that they begin anew; ended keys after those that the caller has, and their numbers,
-- in turn.
function operations.ended(id, number, count)
  local newest = call('ZRANGE', keys.ended, -1, -1, 'WITHSCORES')[2]
  if newest and last_ended() == '' then
    -- Redis has evicted the ids.
    call('ZADD', keys.ended_ids, newest, ARGV[1])
  end
  local known = call('ZSCORE', keys.ended_ids, id)
  local since = known and (number ~= '' and number or known) or '0'
  local found = call('ZRANGEBYSCORE', keys.ended, '(' .. since, '+inf', 'WITHSCORES', 'LIMIT', 0, count)
  local results = { whole(now()), last_ended(), known and '0' or '1' }
  for i = 1, #found do
    results[i + 3] = found[i]
  end
  return results
end

-- Arguments: ended keys to add. Results: 1 if there was not enough room.
function operations.add_ended()
  return { add_ended(7, #ARGV) }
end

-- Arguments: ended keys that no catalogue can bring back any more. Results: how many were removed.
function operations.forget_ended()
  return { whole(call('ZREM', keys.ended, unpack(ARGV, 7))) }
end

-- Results: epochs and their marks in turn.
function operations.marks()
  return call('HGETALL', keys.conflict)
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
-- made again; how many fields to set; how many keys have ended; names and contents of the fields in
-- turn; the ended keys; names of fields to delete. Results: 'written' and the new revision; 'raced' and
-- the document's revision; 'documents' or 'fields' if there would be too many; 'removed' if it was; or
-- 'conflict'.
function operations.write(name, expected, id, epoch, documents, fields, entry, removes, rest, sets, ended)
  -- Not arguments of the function, which may be 8,000 at most.
  local first_set, first_ended = 18, 18 + sets * 2
  local first_delete = first_ended + ended
  local follows = relation('')
  if is_marked() then
    return { 'conflict' }
  end
  if follows ~= 'missing' and follows ~= 'same' and follows ~= 'newer'
    and follows ~= 'unchecked' then
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
  local last_set, last_delete = first_ended - 1, #ARGV
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

  add_ended(first_ended, first_delete - 1)
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
  if follows == 'missing' then
    call('HSET', keys.head, 'format', FORMAT, 'epoch', epoch, 'lineage', '')
  end
  call('HSET', keys.head, 'revision', new, 'id', id,
    'documents', whole(in_all), 'counted', whole(counted_in_all))
  call('ZADD', keys.changes, new, name)
  call('ZADD', keys.ids, new, id)
  call('ZREMRANGEBYRANK', keys.ids, 0, -MAX_IDS - 1)
  call('PUBLISH', keys.head, new)
  return { 'written', new }
end

-- Results: the generations that are not used, and nothing, in turn.
function operations.unused()
  return call('HGETALL', keys.unused)
end

-- Begins a restore into a generation; an earlier one can't go on. Marks the conflict. Arguments: the
-- generation; the caller's name, and the lineage of its catalogue. Results: 'begun' or 'no_conflict'.
function operations.begin(staged, instance, lineage)
  local follows = relation(lineage)
  if follows == 'lost' or follows == 'foreign' then mark(instance, lineage) end
  if not is_marked() then
    return { 'no_conflict' }
  end
  call('HSET', keys.head, 'staged', staged)
  call('HSET', keys.unused, staged, '')
  return { 'begun' }
end

-- Operations on a generation that is not that of the catalogue: KEYS are those of this one.
local staging = {}

local function is_staged()
  return is_marked() and call('HGET', keys.head, 'staged') == generation
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

-- Forgets the history of a document that the generation lacks. Results: 'staged' or 'changed'.
function staging.omit()
  if not is_staged() then
    return { 'changed' }
  end
  call('DEL', keys.history)
  return { 'staged' }
end

-- Ends a conflict. The caller's catalogue is that which the store had when it was read. Arguments: number
-- of marks then; new epoch, revision, id and lineage; and if the generation becomes that of the
-- catalogue, number of its documents, and of counted fields. Results: 'switched' or 'changed'.
function staging.switch(marks, epoch, revision, id, lineage, documents, counted)
  local head = call('HMGET', keys.head, 'epoch', 'revision', 'id', 'generation')
  local is_seen = (head[1] or '') == own.epoch and tonumber(head[2] or '0') == own.revision
    and (head[3] or '') == own.id and call('HLEN', keys.conflict) == tonumber(marks)
  -- Another server may have come without all that was written.
  local is_whole = not documents or is_staged() and call('HLEN', keys.index) == tonumber(documents)
  if not is_seen or not is_whole then
    return { 'changed' }
  end
  if documents then
    call('HSET', keys.unused, head[4] or '', '')
    call('HDEL', keys.unused, generation)
    call('HSET', keys.head, 'documents', documents, 'counted', counted, 'generation', generation)
  end
  call('HSET', keys.head, 'format', FORMAT, 'epoch', epoch, 'revision', revision, 'id', id,
    'lineage', lineage)
  call('HDEL', keys.head, 'staged')
  call('DEL', keys.ids)
  call('ZADD', keys.ids, revision, id)
  call('DEL', keys.conflict)
  call('PUBLISH', keys.head, 'restored')
  return { 'switched' }
end

-- Arguments: cursor, about how many. Results: the next cursor, and the index from there on.
function staging.names(cursor, count)
  return call('HSCAN', keys.index, cursor, 'COUNT', count)
end

-- Removes a document of a generation that nobody reads; without a name all that it has beside documents.
function staging.clear(name)
  if call('HEXISTS', keys.unused, generation) == 1 and not is_staged() then
    if name then
      call('UNLINK', keys.document)
    else
      call('UNLINK', keys.changes)
      call('UNLINK', keys.index)
      call('HDEL', keys.unused, generation)
    end
  end
  return {}
end

local function run()
  local head = call('HMGET', keys.head, 'generation', 'format', 'epoch')
  if head[3] and head[2] ~= FORMAT then
    local text = 'FORMAT %s has format %s, this release reads %s: see docs/upgrading.md'
    return { ARGV[1], 'failed', 'HMGET', string.format(text, keys.head, head[2] or '1', FORMAT) }
  end
  local current = head[1] or ''
  local reply = { ARGV[1], 'done', current }
  local operation = operations[ARGV[2]]
  if operation and current ~= generation then
    return reply
  end
  operation = operation or staging[ARGV[2]]
  local results = operation(unpack(ARGV, 7, math.min(#ARGV, 17)))
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
