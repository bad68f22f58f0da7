//! Reading the catalogue never holds Redis for long, whatever is stored: each call of the script reads a
//! bounded number of bytes.

use std::collections::BTreeSet;
use std::fs;

use deadpool_redis::redis::Value;
use rlaas_limiter::fleet::{Catalogue, CatalogueHead, CatalogueWrite, MAX_FIELD_LEN, WriteOutcome};
use rlaas_testkit::redis::RedisServer;

use super::instance::{Instance, standalone};
use super::promises::soon;

const DOCUMENT: &str = "large";
/// Most bytes of a reply: up to four of the largest fields are read at once, beside 64 KiB of others.
const MAX_REPLY: usize = 64 * 1024 + 4 * MAX_FIELD_LEN;
/// Most fields or pieces of a reply, but for those that have the same place in the hash.
const MAX_PER_CALL: usize = 400;

/// Calls a reading operation with the script itself, and returns its results.
fn call(redis: &RedisServer, script: &str, operation: &str, arguments: &[&str]) -> Vec<Vec<u8>> {
    let below = |name: &str| format!("{{rlaas:catalog}}:{name}");
    let names = [
        "revisions",
        "changes",
        "documents",
        "document:large",
        "history:large",
        "conflict",
        "unused",
        "removed",
        "ended",
        "ended-ids",
    ];
    let names = names.map(below);
    let mut words = vec!["EVAL", script, "11", "rlaas:catalog"];
    words.extend(names.iter().map(String::as_str));
    words.extend(["nonce", operation, "", "0", "", ""]);
    words.extend(arguments);
    let reply: Vec<Value> = redis.query(&words);
    let bytes = |value| match value {
        Value::BulkString(bytes) => bytes,
        other => panic!("{other:?}"),
    };
    let reply: Vec<Vec<u8>> = reply.into_iter().map(bytes).collect();
    assert_eq!(reply[..2], [b"nonce".to_vec(), b"done".to_vec()]);
    reply[3..].to_vec()
}

async fn write(
    catalogue: &Catalogue,
    head: Option<CatalogueHead>,
    write: CatalogueWrite,
) -> CatalogueHead {
    let expected = head.map_or(0, |head| head.revision);
    let outcome = catalogue.write(head, &CatalogueWrite { expected, ..write }, soon()).await;
    match outcome.expect("an answer") {
        WriteOutcome::Written { head } => head,
        other => panic!("{other:?}"),
    }
}

fn bytes_of(reply: &[Vec<u8>]) -> usize {
    reply.iter().map(Vec::len).sum()
}

/// Stores a document with short and long fields, and a history with short and long entries.
async fn store(redis: &RedisServer) -> Instance {
    let instance = Instance::start(standalone(&redis.url())).await;
    let catalogue = instance.fleet.catalogue();
    let mut head = None;
    for batch in 0..10 {
        let mut large = CatalogueWrite::new(DOCUMENT);
        let short =
            (0..400).map(|number| (format!("rule:short-{batch}-{number}"), vec![b's'; 500]));
        large.set.extend(short);
        let long =
            (0..3).map(|number| (format!("rule:long-{batch}-{number}"), vec![b'l'; MAX_FIELD_LEN]));
        large.set.extend(long);
        large.history = vec![b'h'; if batch % 2 == 0 { 3 << 20 } else { 400 }];
        head = Some(write(&catalogue, head, large).await);
    }
    instance
}

#[tokio::test]
async fn each_call_reads_a_bounded_number_of_bytes() {
    let redis = RedisServer::start();
    let instance = store(&redis).await;
    let script = fs::read_to_string("lua/catalogue.lua").expect("the script");
    let (mut cursor, mut names, mut largest) = ("0".to_owned(), BTreeSet::new(), 0);
    loop {
        let page = call(&redis, &script, "page", &[DOCUMENT, &cursor, "200"]);
        cursor = String::from_utf8(page[1].clone()).expect("a cursor");
        names.extend(page[2..].iter().step_by(2).cloned());
        largest = largest.max(bytes_of(&page));
        assert!(bytes_of(&page) < MAX_REPLY, "{}", bytes_of(&page));
        assert!(page.len() <= 2 * MAX_PER_CALL, "{}", page.len());
        if cursor == "0" {
            break;
        }
    }
    assert_eq!(names.len(), 4_030);
    let (mut position, mut in_all) = (0, 0);
    loop {
        let pieces = call(&redis, &script, "history", &[&position.to_string(), "200"]);
        if pieces.is_empty() {
            break;
        }
        assert!(bytes_of(&pieces) <= 2 * 65 * 1024, "{}", bytes_of(&pieces));
        (position, in_all) = (position + pieces.len(), in_all + bytes_of(&pieces));
    }
    assert!(in_all > 5 * (3 << 20), "{in_all}");
    println!("largest page of fields: {largest} bytes; history of {in_all} bytes in pieces");
    let stored = instance.fleet.catalogue().read(DOCUMENT, soon()).await.expect("an answer");
    assert_eq!(stored.expect("the document").fields.len(), 4_030);
}

#[tokio::test]
async fn reader_of_a_history_reads_no_further_than_it_needs() {
    let redis = RedisServer::start();
    let instance = store(&redis).await;
    let catalogue = instance.fleet.catalogue();
    let reads = || {
        let stats: String = redis.query(&["INFO", "commandstats"]);
        let of_lists = stats.split("cmdstat_lrange:calls=").nth(1).unwrap_or("0,");
        of_lists.split(',').next().and_then(|calls| calls.parse::<u64>().ok()).expect("a number")
    };
    let mut reader = catalogue.history(DOCUMENT).expect("a name");
    let newest = reader.next(soon()).await.expect("an answer").expect("an entry");
    assert_eq!(newest.content.len(), 400);
    assert!(reads() <= 2, "{} pieces were read", reads());
    let second = reader.next(soon()).await.expect("an answer").expect("an entry");
    assert_eq!(second.content.len(), 3 << 20);
    assert!(reads() <= 50, "{} pieces were read", reads());
    while reader.next(soon()).await.expect("an answer").is_some() {}
    assert!(reads() > 240, "{} pieces were read", reads());
}
