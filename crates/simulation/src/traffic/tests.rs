//! Traffic from files, through the public door.

use std::error::Error;
use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use rlaas_core::clock::{Micros, Timestamp};

use serde_json::Value;

use super::{Traffic, TrafficCounts, TrafficInput, TrafficSettings};
use crate::request::{RecordedFields, RecordedRequest};

/// A folder of inputs, which is removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("rlaas-traffic-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }

    fn file(&self, name: &str, bytes: impl AsRef<[u8]>) -> TrafficInput {
        let path = self.0.join(name);
        fs::write(&path, bytes).expect("a file");
        TrafficInput::File(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _left_behind = fs::remove_dir_all(&self.0);
    }
}

fn combined(host: &str, second: u64, status: u16) -> String {
    let time = jiff::Timestamp::from_second(1_700_000_000 + i64::try_from(second).expect("small"));
    let time = time.expect("a time").strftime("%d/%b/%Y:%H:%M:%S +0000").to_string();
    format!("{host} - - [{time}] \"GET /a?b HTTP/1.1\" {status} 17 \"-\" \"-\"\n")
}

/// Reads a request that has a user alone.
#[expect(clippy::needless_pass_by_value, reason = "as parsers take it")]
fn request(json: Value) -> Result<RecordedRequest, Box<dyn Error + Send + Sync>> {
    let user_id = json["user"].as_str().ok_or("must have a user")?.into();
    let fields = RecordedFields { user_id, cost: 1, ..RecordedFields::default() };
    Ok(RecordedRequest::Fields(fields))
}

fn requests(inputs: Vec<TrafficInput>) -> TrafficSettings {
    TrafficSettings::new(inputs, request)
}

fn settings(format: &str, inputs: Vec<TrafficInput>) -> TrafficSettings {
    let mut settings = requests(inputs);
    settings.format = Some(format.parse().expect("a format"));
    settings
}

/// Reads everything: seconds after 1,700,000,000 with user ids.
fn read(settings: &TrafficSettings) -> (Vec<(u64, String)>, TrafficCounts) {
    let mut traffic = Traffic::open(settings).unwrap_or_else(|error| panic!("{error}"));
    let mut read = Vec::new();
    for request in traffic.by_ref() {
        let RecordedRequest::Fields(fields) = request.request else { panic!("fields") };
        let second = request.at.as_micros() / 1_000_000 - 1_700_000_000;
        read.push((second, fields.user_id.to_string()));
    }
    let counts = traffic.counts().clone();
    let TrafficCounts { arrivals, unread, anonymous, .. } = counts;
    assert_eq!(
        counts.lines,
        arrivals + unread + anonymous,
        "each line is in one count: {counts:?}"
    );
    (read, counts)
}

fn users(read: &[(u64, String)]) -> Vec<(u64, &str)> {
    read.iter().map(|(second, user)| (*second, user.as_str())).collect()
}

#[test]
fn files_are_merged_by_time_whatever_they_are_compressed_with() {
    let folder = Folder::new();
    let first = combined("192.0.2.1", 10, 200) + &combined("192.0.2.2", 30, 429);
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    let second = combined("192.0.2.3", 20, 200) + &combined("192.0.2.4", 30, 200);
    encoder.write_all(second.as_bytes()).expect("a vector");
    let inputs = vec![
        folder.file("a.log", first),
        folder.file("b.log.gz", encoder.finish().expect("a vector")),
    ];
    let (requests, counts) = read(&settings("combined", inputs));
    let expected = [(10, "192.0.2.1"), (20, "192.0.2.3"), (30, "192.0.2.2"), (30, "192.0.2.4")];
    assert_eq!(users(&requests), expected);
    assert_eq!((counts.inputs, counts.refused_before), (2, 1));
    let suggested = ["user_id=host", "resource=uri", "time=time", "status=status"];
    assert_eq!(counts.default_mappings, suggested);
    let first = Timestamp::from_millis(1_700_000_010_000);
    assert_eq!((counts.first, counts.last), (Some(first), Some(first + Micros::from_secs(20))));
}

#[test]
fn lines_of_requests_have_times_of_all_forms() {
    let folder = Folder::new();
    let one = "{\"time\":1700000010,\"request\":{\"user\":\"ann\"}}\n\
               {\"request\":{\"user\":\"bob\"},\"time\":\"2023-11-14T22:13:34.5Z\"}\n";
    let other = "{\"time\":1700000011000,\"request\":{\"user\":\"eve\"}}\n\
                 {\"time\":1700000012.25,\"request\":{\"user\":\"ann\"}}\n\
                 {\"time\":\"soon\",\"request\":{\"user\":\"ann\"}}\n\
                 {\"time\":1,\"request\":{}}\n{\"time\":1}\n{\"time\":1,\"request\":{},\"id\":2}\n";
    let inputs = vec![folder.file("one.jsonl", one), folder.file("other.jsonl", other)];
    let (found, counts) = read(&requests(inputs));
    assert_eq!(users(&found), [(10, "ann"), (11, "eve"), (12, "ann"), (14, "bob")]);
    let reasons: Vec<_> = counts.first_unread.iter().map(|line| &*line.reason).collect();
    assert!(reasons[0].starts_with("time must be"), "{reasons:?}");
    assert_eq!(reasons[1], "request: must have a user");
    for (reason, field) in
        reasons[2..].iter().zip(["missing field `request`", "unknown field `id`"])
    {
        assert!(
            reason.contains("an object with time and request") && reason.contains(field),
            "{reason}"
        );
    }
}

#[test]
fn an_input_that_breaks_off_is_read_as_far_as_it_goes() {
    let folder = Folder::new();
    let lines: String = (0..1_000).map(|second| combined("192.0.2.1", second, 200)).collect();
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(lines.as_bytes()).expect("a vector");
    let mut bytes = encoder.finish().expect("a vector");
    bytes.truncate(bytes.len() / 2);
    let (requests, counts) = read(&settings("combined", vec![folder.file("a.log.1.gz", bytes)]));
    assert!((100..1_000).contains(&requests.len()), "{}", requests.len());
    assert_eq!(counts.damaged.len(), 1, "{counts:?}");
    assert!(counts.damaged[0].reason.starts_with("can be read only in part: "), "{counts:?}");
}

#[test]
fn lines_out_of_order_are_sorted_and_later_ones_counted() {
    let folder = Folder::new();
    let seconds = [20, 11, 15, 10, 9, 31, 20, 40];
    let lines: String = seconds.map(|second| combined("a", second, 200)).concat();
    let (requests, counts) = read(&settings("combined", vec![folder.file("a.log", lines)]));
    let found: Vec<u64> = requests.iter().map(|(second, _)| *second).collect();
    assert_eq!(found, [10, 10, 11, 15, 20, 21, 31, 40], "9 and the second 20 are late");
    assert_eq!((counts.late, counts.left_early), (2, 0));
}

#[test]
fn a_full_buffer_lets_the_oldest_leave_early() {
    let folder = Folder::new();
    let lines: String = (0..100).rev().map(|at| combined("a", 100 + at / 10, 200)).collect();
    let mut settings = settings("combined", vec![folder.file("a.log", lines)]);
    let (requests, counts) = read(&settings);
    assert_eq!((requests.len(), counts.late, counts.left_early), (100, 0, 0));
    settings.max_held_bytes = 1_000;
    let (requests, counts) = read(&settings);
    assert!(requests.is_sorted_by_key(|(second, _)| *second), "{requests:?}");
    assert_eq!(requests.len(), 100);
    assert!(counts.left_early > 0 && counts.late > 10, "{counts:?}");
}

#[test]
fn what_was_removed_is_refused_by_name() {
    let folder = Folder::new();
    for (name, bytes, expected) in [
        ("old.rec", &b"RLAASREC\x02\0and so on"[..], "old.rec: is a recording, which was removed"),
        ("old.jsonl", b"{\"rlaas_recording\":2}\n", "old.jsonl: is a recording, which was removed"),
        ("a.log.zst.1", b"", "a.log.zst.1: zstd was removed: use zstdcat, into --traffic -"),
    ] {
        let input = folder.file(name, bytes);
        let error = error(&requests(vec![input.clone()]));
        assert!(error.contains(expected), "{error}");
        let TrafficInput::File(path) = input else { panic!("a file") };
        assert_eq!(fs::read(path).expect("a file"), bytes, "left as it is");
    }
}

#[test]
fn hostile_lines_are_counted_and_the_others_read() {
    let folder = Folder::new();
    let mut bytes = combined("192.0.2.1", 10, 200).into_bytes();
    bytes.extend(vec![b'x'; 3 << 20]);
    bytes.extend(b"\n\n\0\0\0\n");
    bytes.extend(combined("h\u{1}", 11, 200).into_bytes());
    bytes.extend(combined("x", 12, 200).replace("/a?b", "/?").bytes());
    let mut latin = combined("y", 12, 200).into_bytes();
    latin[0] = 0xe4;
    bytes.extend(latin);
    bytes.extend(combined("192.0.2.3", 14, 200).replace("2023", "1969").bytes());
    bytes.extend(combined("192.0.2.4", 14, 200).replace(" 17 ", " x ").bytes());
    bytes.extend(combined(&"u".repeat(70_000), 14, 200).bytes());
    bytes.extend(combined("-", 14, 200).bytes());
    bytes.extend(combined("192.0.2.4", 14, 200).bytes());
    bytes.extend(b"the last line has no end");
    let (requests, counts) = read(&settings("combined", vec![folder.file("a.log", bytes)]));
    let expected =
        [(10, "192.0.2.1"), (11, "h\u{1}"), (12, "x"), (12, "\u{fffd}"), (14, "192.0.2.4")];
    assert_eq!(users(&requests), expected);
    let unread: Vec<_> =
        counts.first_unread.iter().map(|line| (line.line, line.reason.as_str())).collect();
    let format = "the line does not have the format combined";
    let long = "the line is too long, must be at most 64 KiB";
    assert_eq!(unread[0], (2, long));
    assert_eq!(unread[1], (4, format), "NUL");
    assert!(unread[2].0 == 8 && unread[2].1.starts_with("time must be"), "{unread:?}");
    assert_eq!(unread[3], (9, format));
    assert_eq!(unread[4], (10, long));
    assert_eq!((unread[5], unread.len(), counts.anonymous), ((13, format), 6, 1));
    assert!(counts.first_unread.iter().all(|line| line.excerpt.chars().count() <= 200));
}

#[test]
fn fields_of_json_are_mapped_and_those_that_no_line_has_are_named() {
    let folder = Folder::new();
    let line = "{\"t\":1700000001,\"u\":{\"id\":\"a\"},\"path\":\"/x?y\",\"status\":429,\"n\":3}\n";
    let other = "{\"t\":1700000002000,\"u\":{\"id\":\"10.0.0.1:4711\"},\"plan\":\"free\"}\n";
    let bad = "{\"t\":1700000003,\"u\":{\"id\":\"a\"},\"n\":0.5}\n{\"u\":{\"id\":\"a\"}}\n";
    let inputs = vec![folder.file("a.json", line), folder.file("b.json", [other, bad].concat())];
    let mut settings = settings("jsonl", inputs);
    let maps = [
        "user_id=u.id",
        "time=t",
        "resource=path",
        "attributes.plan=plan",
        "attributes.x=x",
        "cost=n",
        "status=status",
    ];
    settings.mappings = maps.map(str::to_owned).to_vec();
    let mut traffic = Traffic::open(&settings).expect("readable");
    let requests: Vec<_> = traffic.by_ref().map(|request| request.request).collect();
    let fields = |user: &str, resource: &str, attributes: &[(&str, &str)], cost| {
        let attributes = attributes.iter().map(|(name, value)| ((*name).into(), (*value).into()));
        RecordedRequest::Fields(RecordedFields {
            user_id: user.into(),
            resource: resource.into(),
            attributes: attributes.collect(),
            cost,
            at_least: 0,
        })
    };
    let expected = [fields("a", "/x", &[], 3), fields("10.0.0.1", "", &[("plan", "free")], 1)];
    assert_eq!(requests, expected);
    let counts = traffic.counts();
    assert_eq!((counts.refused_before, &counts.absent_fields[..]), (1, &["x".to_owned()][..]));
    let reasons: Vec<_> = counts.first_unread.iter().map(|line| &*line.reason).collect();
    assert_eq!(
        reasons,
        ["cost must be a whole number from 0 to 4294967295", "the line has no time"]
    );
}

#[test]
fn groups_of_an_expression_become_requests_by_their_names() {
    let folder = Folder::new();
    let lines = "1700000001 GET /a?b ann\n1700000002 GET /a -\nGET\n";
    let format = r"regex:^(?<time>\d+) (?<verb>\S+) (?<resource>\S+) (?<user_id>\S+)$";
    let (requests, counts) = read(&settings(format, vec![folder.file("a.log", lines)]));
    assert_eq!(users(&requests), [(1, "ann")]);
    assert_eq!((counts.anonymous, counts.unread), (1, 1));
    let mappings = ["time=time", "resource=resource", "user_id=user_id"];
    assert_eq!(counts.default_mappings, mappings);
}

fn error(settings: &TrafficSettings) -> String {
    let error = Traffic::open(settings).map(|_| ()).expect_err("an error");
    let source = std::error::Error::source(&error).map(ToString::to_string);
    format!("{error} {}", source.unwrap_or_default())
}

#[test]
fn settings_that_contradict_each_other_are_errors() {
    let folder = Folder::new();
    let log = || vec![folder.file("a.log", combined("a", 1, 200))];
    assert!(error(&requests(Vec::new())).contains("at least one file"));
    assert!(error(&requests(log())).contains("--format must be given"));
    let mut mapped = requests(log());
    mapped.mappings = vec!["user_id=host".to_owned()];
    assert!(error(&mapped).contains("--map must be given with --format"));
    assert!(error(&settings("jsonl", log())).contains("--map user_id="));
    assert!(error(&settings("regex:(?<user_id>a)", log())).contains("--map time="));
    let twice = vec![TrafficInput::StandardInput, TrafficInput::StandardInput];
    assert!(error(&settings("combined", twice)).contains("standard input"));
    let missing = vec![TrafficInput::File(folder.0.join("missing"))];
    assert!(error(&settings("combined", missing)).contains("cannot be opened"));
    let many = (0..=100).map(|number| TrafficInput::File(format!("{number}.log").into()));
    let expected = "100.log: is one too many, must be at most 100 files";
    assert!(error(&settings("combined", many.collect())).contains(expected));
    for (mapping, expected) in [
        ("resource=target", "target is not a field of the format combined, must be of host, ident"),
        ("user_id=forwarded(1)", "--map user_id=FIELD: must be the name of one field; expressions"),
        ("resource=path($uri)", "--map resource=FIELD: must be the name of one field"),
        ("user_id=\"all\"", "--map user_id=FIELD: must be the name of one field; expressions"),
        ("duration=request_time", "--map duration was removed"),
        ("entries[1].path=uri", "--map entries[1].path was removed"),
        ("user=host", "--map user: must be of user_id, resource, attributes.NAME"),
        ("attributes.=host", "--map attributes.: must be of user_id"),
        ("user_id", "--map user_id=FIELD: must be the name"),
    ] {
        let mut bad = settings("combined", log());
        bad.mappings = vec![mapping.to_owned()];
        let error = error(&bad);
        assert!(error.contains(expected), "{mapping}: {error}");
    }
    let mut twice = settings("combined", log());
    twice.mappings = vec!["cost=bytes".to_owned(); 2];
    assert!(error(&twice).contains("--map cost: must be given once"));
}
