//! The catalogue: the same promises in memory and in Redis.

use std::collections::BTreeMap;

use rlaas_limiter::clock::{Micros, Timestamp};
use rlaas_limiter::fleet::{
    Catalogue, CatalogueBounds, CatalogueHead, CatalogueId, CatalogueRelation, CatalogueWrite,
    Fleet, HistoryEntry, MAX_ENTRY_LEN, MAX_FIELD_LEN, MAX_HISTORY, MAX_REMOVED, WriteOutcome,
};
use rlaas_limiter::store::StoreError;
use rlaas_projects::registry::ID_REST;
use rlaas_testkit::cluster::RedisCluster;
use rlaas_testkit::redis::RedisServer;

use super::instance::{Instance, cluster, standalone};
use super::promises::soon;

#[tokio::test]
async fn promises_hold_in_memory() {
    let limiter = rlaas_limiter::Limiter::builder().build().expect("a limiter");
    let fleet = Fleet::new(limiter.store());
    assert_all(&fleet.catalogue(), &fleet.clone().catalogue()).await;
}

#[tokio::test]
async fn promises_hold_on_one_server() {
    let redis = RedisServer::start();
    let one = Instance::start(standalone(&redis.url())).await;
    let other = Instance::start(standalone(&redis.url())).await;
    assert_all(&one.fleet.catalogue(), &other.fleet.catalogue()).await;
    for key in redis.keys() {
        assert!(key == "rlaas:catalog" || key.starts_with("{rlaas:catalog}:"), "{key}");
        assert_eq!(redis.query::<i64>(&["PTTL", &key]), -1, "{key} lives for ever");
    }
}

#[tokio::test]
async fn promises_hold_on_a_cluster() {
    let redis = RedisCluster::start(3, 0).await;
    let one = Instance::start(cluster(&redis.urls())).await;
    let other = Instance::start(cluster(&redis.urls())).await;
    assert_all(&one.fleet.catalogue(), &other.fleet.catalogue()).await;
    let slots: std::collections::BTreeSet<_> =
        redis.keys().iter().map(|key| redis.slot_of(key)).collect();
    assert_eq!(slots.len(), 1, "{:?}", redis.keys());
}

#[tokio::test]
async fn names_of_removed_documents_rest_and_the_oldest_are_dropped_first() {
    let redis = RedisServer::start();
    let t0 = Timestamp::from_millis(1_700_000_000_000);
    redis.set_clock(t0);
    let instance = Instance::start(standalone(&redis.url())).await;
    let on = instance.fleet.catalogue();
    let create =
        async |name: &str| write(&on, CatalogueWrite { rest: ID_REST, ..setting(name, &[]) }).await;
    let remove = async |name: &str| {
        written(write(&on, CatalogueWrite { removes: true, ..CatalogueWrite::new(name) }).await);
    };
    written(create("gone").await);
    remove("gone").await;
    redis.set_clock(t0 + ID_REST.into() - Micros::from_secs(1));
    assert_eq!(create("gone").await, WriteOutcome::Removed);
    redis.set_clock(t0 + ID_REST.into());
    written(create("gone").await);

    let fill =
        "for i = 1, tonumber(ARGV[1]) do redis.call('ZADD', KEYS[1], ARGV[2] + i, 'd' .. i) end";
    let removed = "{rlaas:catalog}:removed";
    redis.query::<()>(&["DEL", removed]);
    let (most, since) = (MAX_REMOVED.to_string(), (t0.as_millis() / 1_000).to_string());
    redis.query::<()>(&["EVAL", fill, "1", removed, &most, &since]);
    assert_eq!(create("d1").await, WriteOutcome::Removed);
    remove("gone").await;
    assert_eq!(redis.query::<usize>(&["ZCARD", removed]), MAX_REMOVED);
    written(create("d1").await);
    for kept in ["d2", "gone"] {
        assert_eq!(create(kept).await, WriteOutcome::Removed, "{kept}");
    }
}

/// Checks every promise with two handles on the same empty catalogue.
async fn assert_all(one: &Catalogue, other: &Catalogue) {
    first_write_makes_the_catalogue(one, other).await;
    documents_are_read_as_written(one, other).await;
    counted_objects_have_their_revision(one, other).await;
    lost_update_is_refused(one, other).await;
    changes_are_listed_in_order(one, other).await;
    history_is_bounded(one, other).await;
    long_histories_are_read_in_pieces(one, other).await;
    bounds_hold_over_all_documents(one, other).await;
    removed_document_is_a_change(one, other).await;
    concurrent_writes_all_count(one, other).await;
    strange_catalogue_is_a_conflict(one, other).await;
    nothing_happens_after_the_deadline(one).await;
}

async fn head(on: &Catalogue) -> Option<CatalogueHead> {
    on.head(None, soon()).await.expect("an answer").map(|(head, _)| head)
}

async fn relation(on: &Catalogue, own: CatalogueHead) -> CatalogueRelation {
    on.head(Some(own), soon()).await.expect("an answer").expect("a catalogue").1
}

/// Writes a document as its last reader would.
async fn write(on: &Catalogue, write: CatalogueWrite) -> WriteOutcome {
    let document = on.read(&write.document, soon()).await.expect("an answer");
    let expected = document.map_or(0, |document| document.revision);
    on.write(head(on).await, &CatalogueWrite { expected, ..write }, soon())
        .await
        .expect("an answer")
}

fn setting(document: &str, fields: &[(&str, &[u8])]) -> CatalogueWrite {
    let set = fields.iter().map(|(name, content)| ((*name).to_owned(), content.to_vec()));
    CatalogueWrite { set: set.collect(), ..CatalogueWrite::new(document) }
}

fn written(outcome: WriteOutcome) -> CatalogueHead {
    match outcome {
        WriteOutcome::Written { head } => head,
        other => panic!("{other:?}"),
    }
}

async fn fields(on: &Catalogue, document: &str) -> BTreeMap<String, Vec<u8>> {
    on.read(document, soon()).await.expect("an answer").expect("a document").fields
}

async fn first_write_makes_the_catalogue(one: &Catalogue, other: &Catalogue) {
    assert_eq!(one.head(None, soon()).await.expect("an answer"), None);
    assert_eq!(one.read("a", soon()).await.expect("an answer"), None);
    let first = written(one.write(None, &setting("a", &[]), soon()).await.expect("an answer"));
    assert_eq!(first.revision, 1);
    assert_eq!(head(other).await, Some(first));
    assert_eq!(relation(other, first).await, CatalogueRelation::Same);
    // Who knows no catalogue has to read this one first.
    let blind = other.write(None, &setting("b", &[]), soon()).await.expect("an answer");
    assert_eq!(blind, WriteOutcome::Conflict);
    assert_eq!(fields(other, "a").await, BTreeMap::new());
}

async fn documents_are_read_as_written(one: &Catalogue, other: &Catalogue) {
    let content: Vec<u8> = (0..=255).collect();
    let many: BTreeMap<_, _> =
        (0..1500).map(|number| (format!("rule:{number}"), content.clone())).collect();
    let name = "{x}:%\n\u{e4}";
    let large = CatalogueWrite { set: many.clone(), ..CatalogueWrite::new(name) };
    let first = written(write(one, large).await);
    assert_eq!(fields(other, name).await, many);
    assert_eq!(
        other.read(name, soon()).await.expect("an answer").expect("it").revision,
        first.revision
    );
    let mut change = setting(name, &[("rule:0", b""), ("new", b"\0")]);
    change.delete = (1..1500).map(|number| format!("rule:{number}")).collect();
    written(write(other, change).await);
    let expected = [("new".to_owned(), b"\0".to_vec()), ("rule:0".to_owned(), Vec::new())];
    assert_eq!(fields(one, name).await, expected.into());
}

async fn counted_objects_have_their_revision(one: &Catalogue, other: &Catalogue) {
    let objects = [("rule:a", &b"{\"x\":1}"[..]), ("rule:b", b"{\"x\":1}"), ("c", b"{\"x\":1}")];
    let first = written(write(one, setting("objects", &objects)).await).revision;
    let others = [("rule:b", &b"{\"x\":2}"[..]), ("rule:none", b"{}"), ("rule:text", b"x")];
    let second = written(write(other, setting("objects", &others)).await).revision;
    let expected = [
        ("c", "{\"x\":1}".to_owned()),
        ("rule:a", format!("{{\"revision\":{first},\"x\":1}}")),
        ("rule:b", format!("{{\"revision\":{second},\"x\":2}}")),
        ("rule:none", "{}".to_owned()),
        ("rule:text", "x".to_owned()),
    ];
    let expected = expected.map(|(name, content)| (name.to_owned(), content.into_bytes()));
    assert_eq!(fields(one, "objects").await, expected.into());
    let mut delete = setting("objects", &[]);
    delete.delete = ["a", "b", "none", "text"].map(|name| format!("rule:{name}")).into();
    written(write(one, delete).await);
}

async fn lost_update_is_refused(one: &Catalogue, other: &Catalogue) {
    let read = written(write(one, setting("raced", &[("a", b"1")])).await);
    let second = written(write(other, setting("raced", &[("a", b"2")])).await);
    let stale = CatalogueWrite { expected: read.revision, ..setting("raced", &[("a", b"3")]) };
    let own = head(one).await;
    let outcome = one.write(own, &stale, soon()).await.expect("an answer");
    assert_eq!(outcome, WriteOutcome::Raced { revision: second.revision });
    let again = one.write(own, &setting("raced", &[]), soon()).await.expect("an answer");
    assert_eq!(again, WriteOutcome::Raced { revision: second.revision }, "it exists");
    assert_eq!(fields(other, "raced").await["a"], b"2");
    // A write to another document does not count: the writer's catalogue need not be the newest.
    let newer = CatalogueWrite { expected: second.revision, ..setting("raced", &[("a", b"4")]) };
    written(write(other, setting("another", &[])).await);
    written(one.write(own, &newer, soon()).await.expect("an answer"));
    assert_eq!(relation(one, read).await, CatalogueRelation::Newer);
}

async fn changes_are_listed_in_order(one: &Catalogue, other: &Catalogue) {
    let before = head(one).await.expect("a catalogue").revision;
    for name in ["x", "y", "x", "z"] {
        written(write(one, setting(name, &[])).await);
    }
    let changes = other.changes(before, soon()).await.expect("changes");
    let named: Vec<_> = changes.into_iter().map(|one| (one.name, one.revision)).collect();
    let expected = [("y", 2), ("x", 3), ("z", 4)];
    assert_eq!(named, expected.map(|(name, after)| (name.to_owned(), before + after)));
    assert_eq!(other.changes(before + 4, soon()).await.expect("changes"), []);
}

async fn history_is_bounded(one: &Catalogue, other: &Catalogue) {
    let mut revisions = Vec::new();
    for number in 0..MAX_HISTORY + 3 {
        let history = format!("entry {number}\0").into_bytes();
        let change = CatalogueWrite { history, ..setting("history", &[]) };
        revisions.push((written(write(one, change).await).revision, number));
    }
    written(write(one, setting("history", &[])).await);
    let entries = entries_of(other, "history").await;
    let found: Vec<_> = entries.iter().map(|entry| (entry.revision, &*entry.content)).collect();
    let newest: Vec<_> = revisions.iter().rev().take(MAX_HISTORY).collect();
    assert_eq!(found.len(), MAX_HISTORY);
    for ((revision, content), (expected, number)) in found.into_iter().zip(newest) {
        assert_eq!((revision, content), (*expected, format!("entry {number}\0").as_bytes()));
    }
    assert!(entries_of(other, "none").await.is_empty());
}

async fn long_histories_are_read_in_pieces(one: &Catalogue, other: &Catalogue) {
    let entry = |number: u8, len: usize| vec![number; len];
    let lens = [0, 1, 64 * 1024, 64 * 1024 + 1, MAX_ENTRY_LEN, 300_000, 7];
    let mut expected = Vec::new();
    for (number, len) in (0_u8..).zip(lens) {
        let content = entry(number, len);
        let change = CatalogueWrite { history: content.clone(), ..setting("long", &[]) };
        let revision = written(write(one, change).await).revision;
        if len > 0 {
            expected.insert(0, HistoryEntry { revision, content });
        }
    }
    assert!(entries_of(other, "long").await == expected, "as they were written");
    // Entries that are written while it is read are newer, and left out.
    let mut reader = other.history("long").expect("a name");
    let mut read = Vec::new();
    for number in 7_u8..9 {
        read.extend(reader.next(soon()).await.expect("an entry"));
        let change = CatalogueWrite { history: entry(number, 200_000), ..setting("long", &[]) };
        written(write(one, change).await);
    }
    while let Some(entry) = reader.next(soon()).await.expect("an entry") {
        read.push(entry);
    }
    assert!(read == expected, "{:?}", read.iter().map(|of| of.revision).collect::<Vec<_>>());
    // 16 MiB are kept: 4 of the longest.
    for number in 0..6 {
        let change =
            CatalogueWrite { history: entry(number, MAX_ENTRY_LEN), ..setting("long", &[]) };
        written(write(one, change).await);
    }
    let kept = entries_of(other, "long").await;
    let first_bytes: Vec<_> = kept.iter().map(|of| (of.content[0], of.content.len())).collect();
    assert_eq!(first_bytes, [5, 4, 3, 2].map(|number| (number, MAX_ENTRY_LEN)));
    let mut too_long = setting("long", &[]);
    too_long.history = entry(0, MAX_ENTRY_LEN + 1);
    one.write(head(one).await, &too_long, soon()).await.expect_err("too long");
    let too_long = setting("long", &[("rule:a", &entry(0, MAX_FIELD_LEN + 1)[..])]);
    one.write(head(one).await, &too_long, soon()).await.expect_err("too long");
}

async fn entries_of(on: &Catalogue, document: &str) -> Vec<HistoryEntry> {
    let (mut reader, mut entries) = (on.history(document).expect("a name"), Vec::new());
    while let Some(entry) = reader.next(soon()).await.expect("an entry") {
        entries.push(entry);
    }
    assert_eq!(reader.next(soon()).await.expect("an answer"), None, "it stays at the end");
    entries
}

async fn bounds_hold_over_all_documents(one: &Catalogue, other: &Catalogue) {
    let documents = other.changes(0, soon()).await.expect("changes").len() as u64;
    let bounds = CatalogueBounds { documents, fields: 4 };
    let bounded = |write| CatalogueWrite { bounds, ..write };
    let too_many = write(one, bounded(setting("one more", &[]))).await;
    assert_eq!(too_many, WriteOutcome::TooManyDocuments);
    // One counted field is in another document already.
    let three = [("rule:a", &b""[..]), ("rule:b", b""), ("rule:c", b""), ("other", b"")];
    written(write(one, bounded(setting("x", &three))).await);
    assert_eq!(
        write(one, bounded(setting("y", &[("rule:d", b"")]))).await,
        WriteOutcome::TooManyFields
    );
    let mut swap = bounded(setting("x", &[("rule:d", b""), ("rule:a", b"again")]));
    swap.delete = ["rule:b".to_owned(), "rule:none".to_owned()].into();
    written(write(other, swap).await);
    assert_eq!(
        fields(one, "x").await.keys().collect::<Vec<_>>(),
        ["other", "rule:a", "rule:c", "rule:d"]
    );
    // What exceeds the bound already may shrink.
    let tight = CatalogueBounds { documents: 0, fields: 0 };
    let mut fewer = CatalogueWrite { bounds: tight, ..setting("x", &[]) };
    fewer.delete = ["rule:c".to_owned()].into();
    written(write(one, fewer).await);
}

async fn removed_document_is_a_change(one: &Catalogue, other: &Catalogue) {
    let history = b"made".to_vec();
    written(write(one, CatalogueWrite { history, ..setting("gone", &[("rule:z", b"")]) }).await);
    let removal = CatalogueWrite { removes: true, ..CatalogueWrite::new("gone") };
    let removed = written(write(other, removal).await);
    assert_eq!(one.read("gone", soon()).await.expect("an answer"), None);
    assert!(entries_of(one, "gone").await.is_empty());
    let changes = one.changes(removed.revision - 1, soon()).await.expect("changes");
    assert_eq!(changes.iter().map(|one| &*one.name).collect::<Vec<_>>(), ["gone"]);
    let rest = std::time::Duration::from_hours(1);
    let again = write(other, CatalogueWrite { rest, ..setting("gone", &[]) }).await;
    assert_eq!(again, WriteOutcome::Removed);
    // Its counted field is free again.
    let bounds = CatalogueBounds { documents: u64::MAX, fields: 4 };
    written(write(one, CatalogueWrite { bounds, ..setting("gone", &[("rule:z", b"")]) }).await);
    assert_eq!(fields(other, "gone").await.len(), 1);
}

async fn concurrent_writes_all_count(one: &Catalogue, other: &Catalogue) {
    let before = head(one).await.expect("a catalogue").revision;
    let writes = (0..40).map(|number| async move {
        let on = if number % 2 == 0 { one } else { other };
        // Again and again until nobody was faster.
        loop {
            let field = format!("field-{number}");
            match write(on, setting("shared", &[(&field, b"")])).await {
                WriteOutcome::Raced { .. } => {}
                outcome => break written(outcome).revision,
            }
        }
    });
    let mut revisions = futures_util::future::join_all(writes).await;
    revisions.sort_unstable();
    assert_eq!(revisions, (before + 1..=before + 40).collect::<Vec<_>>());
    assert_eq!(fields(one, "shared").await.len(), 40);
}

async fn strange_catalogue_is_a_conflict(one: &Catalogue, other: &Catalogue) {
    let known = head(one).await.expect("a catalogue");
    let strange = [
        (CatalogueHead { epoch: CatalogueId::random(), ..known }, CatalogueRelation::Foreign),
        (CatalogueHead { id: CatalogueId::random(), ..known }, CatalogueRelation::Lost),
        (CatalogueHead { revision: known.revision + 1, ..known }, CatalogueRelation::Lost),
        (CatalogueHead { revision: known.revision - 1, ..known }, CatalogueRelation::Lost),
    ];
    for (own, expected) in strange {
        assert_eq!(relation(other, own).await, expected, "{own:?}");
        let write = setting("strange", &[]);
        let outcome = other.write(Some(own), &write, soon()).await.expect("an answer");
        assert_eq!(outcome, WriteOutcome::Conflict, "{own:?}");
    }
    assert_eq!(head(one).await, Some(known));
    assert_eq!(one.read("strange", soon()).await.expect("an answer"), None);
}

async fn nothing_happens_after_the_deadline(on: &Catalogue) {
    let past = rlaas_limiter::clock::Deadline::within(std::time::Duration::ZERO);
    let expired = |error: StoreError| assert!(matches!(error, StoreError::Expired), "{error:?}");
    expired(on.head(None, past).await.expect_err("too late"));
    expired(on.read("a", past).await.expect_err("too late"));
    expired(on.write(None, &setting("late", &[]), past).await.expect_err("too late"));
    assert_eq!(on.read("late", soon()).await.expect("an answer"), None);
}

#[tokio::test]
async fn empty_redis_is_a_missing_catalogue() {
    let redis = RedisServer::start();
    let instance = Instance::start(standalone(&redis.url())).await;
    let catalogue = instance.fleet.catalogue();
    let known = written(write(&catalogue, setting("a", &[])).await);
    redis.query::<()>(&["FLUSHALL"]);
    assert_eq!(catalogue.head(Some(known), soon()).await.expect("an answer"), None);
    let outcome = catalogue.write(Some(known), &setting("a", &[]), soon()).await;
    assert_eq!(outcome.expect("an answer"), WriteOutcome::Conflict);
}

#[tokio::test]
async fn revision_that_is_older_than_the_ids_is_known_by_its_epoch() {
    let redis = RedisServer::start();
    let instance = Instance::start(standalone(&redis.url())).await;
    let catalogue = instance.fleet.catalogue();
    let known = written(write(&catalogue, setting("a", &[])).await);
    for _ in 0..4 {
        written(write(&catalogue, setting("a", &[])).await);
    }
    assert_eq!(relation(&catalogue, known).await, CatalogueRelation::Newer);
    // As if 1,000 revisions had been written since.
    let ids = "{rlaas:catalog}:revisions";
    let forgotten: u64 = redis.query(&["ZREMRANGEBYRANK", ids, "0", "1"]);
    assert_eq!(forgotten, 2);
    assert_eq!(relation(&catalogue, known).await, CatalogueRelation::Unchecked);
    let outcome = catalogue.write(Some(known), &setting("b", &[]), soon()).await;
    assert_eq!(written(outcome.expect("an answer")).revision, 6);
    let strange = CatalogueHead { epoch: CatalogueId::random(), ..known };
    assert_eq!(relation(&catalogue, strange).await, CatalogueRelation::Foreign);
    let branched = CatalogueHead { id: CatalogueId::random(), revision: 3, ..known };
    assert_eq!(relation(&catalogue, branched).await, CatalogueRelation::Lost, "3 is kept");
}
