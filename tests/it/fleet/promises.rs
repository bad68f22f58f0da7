//! The promises of a fleet. Each takes two handles: of one process in memory, of two instances in
//! Redis.

use std::time::Duration;

use rlaas_limiter::clock::Deadline;
use rlaas_limiter::fleet::{
    EntryId, Fleet, FleetEvent, LogEntry, LogRange, MAX_NAME_LEN, MAX_READ, MAX_VALUE_LEN,
    MAX_VALUES, NamedValue, NewEntry, ProjectLog, Subscription,
};
use rlaas_limiter::store::StoreError;
use tokio::time::timeout;

/// Time for what happens soon, on a busy machine.
const SOON: Duration = Duration::from_secs(10);

/// A deadline that is not reached.
pub(super) fn soon() -> Deadline {
    Deadline::within(SOON)
}

/// Checks every promise with two handles on the same fleet.
pub(super) async fn assert_all(one: &Fleet, other: &Fleet) {
    a_log_is_read_newest_first(one, other).await;
    a_log_keeps_its_newest_entries(one, other).await;
    a_project_keeps_its_newest_entries(one, other).await;
    entries_are_bytes(one, other).await;
    values_are_replaced_and_listed(one, other).await;
    a_name_is_claimed_once(one, other).await;
    a_map_is_bounded(one).await;
    messages_reach_subscribers(one, other).await;
    a_secret_is_made_once(one, other).await;
    bounds_are_checked(one).await;
    nothing_is_done_after_the_deadline(one, other).await;
}

async fn contents(fleet: &Fleet, log: &str, range: LogRange, count: usize) -> Vec<Vec<u8>> {
    let entries = fleet.read(log, range, count, soon()).await.expect("entries");
    entries.into_iter().map(|entry| entry.content).collect()
}

async fn a_log_is_read_newest_first(one: &Fleet, other: &Fleet) {
    let all = LogRange::default();
    assert!(contents(one, "log", all, 10).await.is_empty());
    let mut ids = Vec::new();
    for (fleet, entry) in [(one, b"a"), (other, b"b"), (one, b"c"), (other, b"d")] {
        ids.push(fleet.append("log", entry, 1000, soon()).await.expect("appended"));
    }
    assert!(ids.is_sorted_by(|a, b| a < b), "{ids:?}");
    for fleet in [one, other] {
        assert_eq!(contents(fleet, "log", all, 10).await, [b"d", b"c", b"b", b"a"]);
        assert_eq!(contents(fleet, "log", all, 2).await, [b"d", b"c"]);
        let range = |from, before| LogRange { from, before };
        assert_eq!(contents(fleet, "log", range(ids[1], ids[3]), 10).await, [b"c", b"b"]);
        assert_eq!(contents(fleet, "log", range(ids[2], EntryId::MAX), 10).await, [b"d", b"c"]);
        assert!(contents(fleet, "log", range(ids[3], ids[0]), 10).await.is_empty());
        assert!(contents(fleet, "other", all, 10).await.is_empty());
        assert!(contents(fleet, "log", all, 0).await.is_empty());
    }
}

async fn a_log_keeps_its_newest_entries(one: &Fleet, other: &Fleet) {
    for number in 0..500_u32 {
        one.append("short", &number.to_be_bytes(), 100, soon()).await.expect("appended");
    }
    let kept = contents(other, "short", LogRange::default(), MAX_READ).await;
    // Redis removes entries in groups of 100.
    assert!((100..=200).contains(&kept.len()), "{}", kept.len());
    let newest: Vec<_> = (0..500_u32).rev().take(kept.len()).map(u32::to_be_bytes).collect();
    assert_eq!(kept, newest);
}

async fn a_project_keeps_its_newest_entries(one: &Fleet, other: &Fleet) {
    let (shop, blog) = ("shop", "a:b {c} %");
    let append = async |fleet: &Fleet, project, content: &[u8]| {
        let entry = NewEntry { content, max_entries: 100, max_project_entries: 20, ttl: None };
        let of = ProjectLog { log: "shared", project };
        fleet.append_of_project(of, entry, soon()).await.expect("appended")
    };
    let read = async |project, range| {
        let of = ProjectLog { log: "shared", project };
        other.read_of_project(of, range, MAX_READ, soon()).await.expect("entries")
    };
    let all = LogRange::default();
    let first = append(one, shop, b"first").await;
    let second = append(other, shop, b"second").await;
    append(one, "", b"none").await;
    for number in 0..500_u32 {
        append(one, blog, &number.to_be_bytes()).await;
    }
    // One entry has one id in both logs.
    let shops = read(shop, all).await;
    let contents = |entries: &[LogEntry]| {
        entries.iter().map(|entry| (entry.id, entry.content.clone())).collect::<Vec<_>>()
    };
    let expected = [(second, b"second".to_vec()), (first, b"first".to_vec())];
    assert_eq!(contents(&shops), expected);
    let before = LogRange { from: EntryId::default(), before: second };
    assert_eq!(contents(&read(shop, before).await), expected[1..]);
    let blogs = read(blog, all).await;
    assert!((20..=200).contains(&blogs.len()), "{}", blogs.len());
    assert_eq!(blogs[0].content, 499_u32.to_be_bytes());
    let shared = read("", all).await;
    assert!((100..=200).contains(&shared.len()), "{}", shared.len());
    assert_eq!(shared[..20], blogs[..20]);
    assert!(read("nobody", all).await.is_empty());
}

async fn entries_are_bytes(one: &Fleet, other: &Fleet) {
    let entries = [vec![], b"\0\r\n\"*1\r\n$4\r\n".to_vec(), vec![0xff; MAX_VALUE_LEN]];
    for (log, entry) in ["n\nl:{x} %", "\0", "ü"].into_iter().zip(entries) {
        one.append(log, &entry, 1, soon()).await.expect("appended");
        assert_eq!(contents(other, log, LogRange::default(), 9).await, [entry], "{log:?}");
    }
}

/// Returns names and values. All of them were put for a minute.
async fn values(fleet: &Fleet, map: &str) -> Vec<(String, Vec<u8>)> {
    let values = fleet.values(map, soon()).await.expect("values");
    let (least, most) = (Duration::from_secs(30), Duration::from_mins(1));
    let named = values.into_iter().map(|NamedValue { name, value, expires_in }| {
        assert!(expires_in > least && expires_in <= most, "{name}: {expires_in:?}");
        (name, value)
    });
    named.collect()
}

async fn values_are_replaced_and_listed(one: &Fleet, other: &Fleet) {
    let minute = Duration::from_mins(1);
    let names = ["b", "a", "n\n{x}:%\0", "ü"];
    for name in names {
        one.put("map", name, b"first", minute, soon()).await.expect("a value");
        other.put("map", name, name.as_bytes(), minute, soon()).await.expect("a value");
    }
    one.put("other", "z", b"", minute, soon()).await.expect("a value");
    let mut expected = names.map(|name| (name.to_owned(), name.as_bytes().to_vec()));
    expected.sort();
    assert_eq!(values(other, "map").await, expected);
    assert_eq!(values(one, "other").await, [("z".to_owned(), vec![])]);
    assert!(one.values("nothing", soon()).await.expect("values").is_empty());
}

async fn a_name_is_claimed_once(one: &Fleet, other: &Fleet) {
    let claim = async |fleet: &Fleet, value: &[u8], ttl| {
        fleet.claim("claims", "a", value, ttl, soon()).await.expect("a claim")
    };
    let (long, short) = (Duration::from_mins(1), Duration::from_millis(1));
    assert_eq!(claim(one, b"first\0", short).await, None);
    // Expires by the clock of the store.
    while let Some(held) = claim(other, b"second", long).await {
        assert_eq!(held, b"first\0");
    }
    assert_eq!(claim(one, b"third", long).await.as_deref(), Some(&b"second"[..]));
    one.put("claims", "a", b"", short, soon()).await.expect("a value");
    while claim(other, b"fourth", long).await.is_some() {}
    assert_eq!(values(one, "claims").await, [("a".to_owned(), b"fourth".to_vec())]);
}

async fn a_map_is_bounded(one: &Fleet) {
    let minute = Duration::from_mins(1);
    for number in 0..MAX_VALUES {
        let name = number.to_string();
        one.put("full", &name, b"", minute, soon()).await.expect("a value");
    }
    let refused = one.put("full", "one more", b"", minute, soon()).await;
    assert_eq!(text(refused), "a map has at most 1024 values");
    one.put("full", "7", b"replaced", minute, soon()).await.expect("a value");
    assert_eq!(one.values("full", soon()).await.expect("values").len(), MAX_VALUES);
}

/// Returns the next message. A subscription begins with a gap.
pub(super) async fn message(subscription: &mut Subscription) -> Vec<u8> {
    loop {
        match timeout(SOON, subscription.next()).await.expect("an event") {
            FleetEvent::Message(message) => return message.to_vec(),
            FleetEvent::Gap => {}
        }
    }
}

async fn messages_reach_subscribers(one: &Fleet, other: &Fleet) {
    let mut subscriptions = [one.subscribe("topic"), other.subscribe("topic")];
    let mut elsewhere = other.subscribe("elsewhere");
    for subscription in subscriptions.iter_mut().chain([&mut elsewhere]) {
        assert_eq!(timeout(SOON, subscription.next()).await, Ok(FleetEvent::Gap));
    }
    let messages = [b"a".to_vec(), b"\0\r\n".to_vec(), vec![7; MAX_VALUE_LEN]];
    for message in &messages {
        one.publish("topic", message, soon()).await.expect("published");
    }
    other.publish("elsewhere", b"last", soon()).await.expect("published");
    for subscription in &mut subscriptions {
        for expected in &messages {
            assert_eq!(&message(subscription).await, expected);
        }
    }
    assert_eq!(message(&mut elsewhere).await, b"last");
}

async fn a_secret_is_made_once(one: &Fleet, other: &Fleet) {
    let secret = one.secret("secret", [0; 32], soon()).await.expect("a secret");
    assert_eq!(secret, [0; 32]);
    for fleet in [one, other] {
        assert_eq!(fleet.secret("secret", [2; 32], soon()).await.expect("a secret"), secret);
    }
    assert_eq!(other.secret("another", [3; 32], soon()).await.expect("a secret"), [3; 32]);
}

async fn bounds_are_checked(one: &Fleet) {
    let (ttl, long) = (Duration::from_secs(1), "n".repeat(MAX_NAME_LEN + 1));
    let long_value = vec![0; MAX_VALUE_LEN + 1];
    let name = "a name must be 1 to 1024 bytes";
    let value = "an entry, value or message must be at most 65536 bytes";
    for wrong in ["", &long] {
        assert_eq!(text(one.append(wrong, b"", 1, soon()).await), name);
        assert_eq!(text(one.read(wrong, LogRange::default(), 1, soon()).await), name);
        assert_eq!(text(one.put(wrong, "a", b"", ttl, soon()).await), name);
        assert_eq!(text(one.put("a", wrong, b"", ttl, soon()).await), name);
        assert_eq!(text(one.values(wrong, soon()).await), name);
        assert_eq!(text(one.publish(wrong, b"", soon()).await), name);
        assert_eq!(text(one.secret(wrong, [0; 32], soon()).await), name);
    }
    assert_eq!(text(one.publish("a", b"", soon()).await), "a message must not be empty");
    assert_eq!(text(one.append("a", &long_value, 1, soon()).await), value);
    assert_eq!(text(one.put("a", "a", &long_value, ttl, soon()).await), value);
    assert_eq!(text(one.publish("a", &long_value, soon()).await), value);
}

async fn nothing_is_done_after_the_deadline(one: &Fleet, other: &Fleet) {
    let over = Deadline::within(Duration::ZERO);
    let errors = [
        text(one.append("late", b"", 1, over).await),
        text(one.read("late", LogRange::default(), 1, over).await),
        text(one.put("late", "a", b"", SOON, over).await),
        text(one.values("late", over).await),
        text(one.publish("late", b"-", over).await),
        text(one.secret("late", [0; 32], over).await),
    ];
    assert_eq!(errors, [(); 6].map(|()| "the caller's deadline has passed"));
    assert!(contents(other, "late", LogRange::default(), 1).await.is_empty());
    assert!(other.values("late", soon()).await.expect("values").is_empty());
    assert_eq!(other.secret("late", [9; 32], soon()).await.expect("a secret"), [9; 32]);
}

fn text<T: std::fmt::Debug>(result: Result<T, StoreError>) -> String {
    result.expect_err("an error").to_string()
}
