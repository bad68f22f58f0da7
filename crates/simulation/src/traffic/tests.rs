//! Traffic from files, through the public door.

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use rlaas_core::clock::{Micros, Timestamp};

use super::{StampedAt, Traffic, TrafficCounts, TrafficError, TrafficInput, TrafficSettings};
use crate::recording::{Header, Writer};
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

fn settings(format: &str, inputs: Vec<TrafficInput>) -> TrafficSettings {
    let mut settings = TrafficSettings::new(inputs);
    settings.format = Some(format.parse().expect("a format"));
    settings
}

/// Reads everything: seconds after 1,700,000,000 with user ids.
fn read(settings: &TrafficSettings) -> (Vec<(u64, String)>, TrafficCounts) {
    let mut traffic = Traffic::open(settings).unwrap_or_else(|error| panic!("{error}"));
    let mut read = Vec::new();
    while let Some(request) = traffic.next().expect("readable") {
        let RecordedRequest::Fields(fields) = traffic.dictionary().request(request.request) else {
            panic!("fields")
        };
        let second = request.at.as_micros() / 1_000_000 - 1_700_000_000;
        read.push((second, fields.user_id.to_string()));
    }
    let counts = traffic.counts().clone();
    let TrafficCounts { arrivals, unread, anonymous, skipped, skipped_by_status, .. } = counts;
    let left_out = skipped + skipped_by_status + counts.skipped_by_project;
    let all = arrivals + unread + anonymous + left_out + counts.without_request;
    assert_eq!(counts.lines, all, "each line is in one count: {counts:?}");
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
    assert_eq!(counts.resolution, Some(Micros::from_secs(1)));
    let suggested =
        ["user_id=ip($host)", "resource=path($uri)", "time=common($time)", "status=$status"];
    assert_eq!(counts.default_mappings, suggested);
    let first = Timestamp::from_millis(1_700_000_010_000);
    assert_eq!((counts.first, counts.last), (Some(first), Some(first + Micros::from_secs(20))));
}

#[test]
fn hundreds_of_files_are_merged_that_overlap_or_follow_each_other() {
    let folder = Folder::new();
    let (mut inputs, mut expected) = (Vec::new(), Vec::new());
    for number in 0..300 {
        // The first hundred overlap, the others follow each other.
        let start = if number < 100 { number % 7 } else { number * 1_000 };
        let host = |line: u64| format!("10.0.{}.{line}", number % 250);
        let lines = (0..5).map(|line| (start + line * 20, host(line)));
        inputs.push(folder.file(
            &format!("{number:04}.log"),
            lines.clone().map(|(second, host)| combined(&host, second, 200)).collect::<String>(),
        ));
        expected
            .extend(lines.enumerate().map(|(line, (second, host))| (second, number, line, host)));
    }
    expected.sort_unstable();
    let expected: Vec<_> =
        expected.into_iter().map(|(second, _, _, host)| (second, host)).collect();
    let (requests, counts) = read(&settings("combined", inputs));
    assert_eq!(requests, expected);
    assert_eq!((counts.inputs, counts.lines, counts.late), (300, 1_500, 0));
}

#[test]
fn a_stamp_of_the_end_is_corrected_by_the_duration() {
    let folder = Folder::new();
    let lines = "{\"user\":\"a\",\"ts\":1700000030,\"took\":20000}\n\
                 {\"user\":\"b\",\"ts\":1700000020,\"took\":null}\n\
                 {\"user\":\"c\",\"ts\":1700000025,\"took\":\"soon\"}\n";
    let mut settings = settings("jsonl", vec![folder.file("a.json", lines)]);
    let maps = ["user_id=user", "time=epoch_s(ts)", "duration=ms(took)"];
    settings.mappings = maps.map(str::to_owned).to_vec();
    assert!(matches!(Traffic::open(&settings), Err(TrafficError::NoStamp)));
    settings.stamped_at = Some(StampedAt::End);
    let (requests, counts) = read(&settings);
    assert_eq!(users(&requests), [(10, "a"), (20, "b")]);
    assert_eq!((counts.without_duration, counts.unread), (1, 1));
    assert_eq!(counts.first_unread[0].reason, "duration must be a number, not below 0");
    settings.mappings.pop();
    assert!(matches!(Traffic::open(&settings), Err(TrafficError::NoDuration)));
}

/// Returns a recording of requests, of which others were lost.
fn recording(requests: &[(u64, &str, bool)], lost: u64) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), &Header::default()).expect("a vector");
    for (second, user, was_refused) in requests {
        let fields =
            RecordedFields { user_id: (*user).into(), cost: 1, ..RecordedFields::default() };
        let at = Timestamp::from_millis((1_700_000_000 + second) * 1_000);
        writer.write(at, &RecordedRequest::Fields(fields), *was_refused).expect("a vector");
    }
    writer.write_lost(lost).expect("a vector");
    writer.finish().expect("a vector")
}

#[test]
fn recordings_of_two_instances_are_one_traffic() {
    let folder = Folder::new();
    // Each has numbers of its own for its users. Its threads write one after the other.
    let one = recording(&[(10, "ann", false), (14, "bob", false), (12, "ann", true)], 2);
    let other = recording(&[(11, "bob", false), (13, "eve", false), (14, "ann", true)], 3);
    let inputs = vec![folder.file("one.rec", one), folder.file("other.rec", other)];
    let settings = TrafficSettings::new(inputs);
    let (requests, counts) = read(&settings);
    let expected = [(10, "ann"), (11, "bob"), (12, "ann"), (13, "eve"), (14, "bob"), (14, "ann")];
    assert_eq!(users(&requests), expected);
    assert_eq!((counts.inputs, counts.arrivals, counts.refused_before), (2, 6, 2));
    assert_eq!((counts.lost, counts.late), (5, 0));
    let mut traffic = Traffic::open(&settings).expect("readable");
    while traffic.next().expect("readable").is_some() {}
    assert_eq!(traffic.dictionary().len(), 3, "a request has one number in all recordings");
    assert_eq!(traffic.recordings().len(), 2);
}

#[test]
fn recordings_are_merged_with_logs() {
    let folder = Folder::new();
    let requests = [(15, "ann", false), (25, "bob", true), (26, "ann", false)];
    let recording = folder.file("a.rec", recording(&requests, 0));
    let alone = TrafficSettings::new(vec![recording.clone()]);
    let (requests, counts) = read(&alone);
    assert_eq!(users(&requests), [(15, "ann"), (25, "bob"), (26, "ann")]);
    assert_eq!((counts.refused_before, counts.resolution), (1, Some(Micros::from_micros(1))));

    let log = folder.file("a.log", combined("192.0.2.1", 20, 200));
    let mut both = settings("combined", vec![recording, log]);
    both.skip_statuses = vec![429];
    let (requests, counts) = read(&both);
    assert_eq!(users(&requests), [(15, "ann"), (20, "192.0.2.1"), (26, "ann")]);
    assert_eq!(counts.skipped_by_status, 1);
    assert_eq!(Traffic::open(&both).expect("readable").recordings().len(), 1);
    both.conditions = vec!["status == 200".to_owned()];
    assert!(matches!(Traffic::open(&both), Err(TrafficError::MappedRecording)));
}

#[test]
fn hostile_lines_are_counted_and_the_others_read() {
    let folder = Folder::new();
    let mut bytes = combined("192.0.2.1", 10, 200).into_bytes();
    bytes.extend(vec![b'x'; 3 << 20]);
    bytes.extend(b"\n\n\0\0\0\n");
    bytes.extend(combined("h\u{e4}", 11, 200).replace('\u{e4}', "\u{1}").into_bytes());
    bytes.extend(combined("x", 12, 200).replace("/a?b", "/?").bytes());
    let mut latin = combined("y", 12, 200).into_bytes();
    latin[0] = 0xe4;
    bytes.extend(latin);
    bytes.extend(combined("192.0.2.2", 13, 200).replace("2023", "9999").bytes());
    bytes.extend(combined("192.0.2.3", 14, 200).replace("2023", "1969").bytes());
    bytes.extend(combined(&"u".repeat(2_000), 14, 200).bytes());
    bytes.extend(combined("192.0.2.4", 14, 200).bytes());
    let (requests, counts) = read(&settings("combined", vec![folder.file("a.log", bytes)]));
    let expected = [(10, "192.0.2.1"), (11, "h\u{1}"), (12, "x"), (12, "%E4"), (14, "192.0.2.4")];
    assert_eq!(users(&requests), expected);
    let unread: Vec<_> =
        counts.first_unread.iter().map(|line| (line.line, line.reason.as_str())).collect();
    assert_eq!(unread.len(), 5, "{unread:?}");
    assert_eq!(unread[0], (2, "the line must be at most 1048576 bytes, not 3145728"));
    assert_eq!(unread[1].0, 4, "NUL");
    let of = |line: u64| unread.iter().find(|(number, _)| *number == line).expect("unread").1;
    assert!(of(8).contains("--max-gap"), "{}", of(8));
    assert_eq!(of(9), "time must be from the year 1970 to 9999");
    assert_eq!(of(10), "user_id must be 1 to 1024 bytes");
    assert!(counts.first_unread.iter().all(|line| line.excerpt.chars().count() <= 200));
}

#[test]
fn an_input_that_breaks_off_is_read_as_far_as_it_goes() {
    let folder = Folder::new();
    let lines: String = (0..1_000).map(|second| combined("192.0.2.1", second, 200)).collect();
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(lines.as_bytes()).expect("a vector");
    let mut bytes = encoder.finish().expect("a vector");
    bytes.truncate(bytes.len() / 2);
    let (requests, counts) = read(&settings("combined", vec![folder.file("a.gz", bytes)]));
    assert!((100..1_000).contains(&requests.len()), "{}", requests.len());
    assert_eq!(counts.damaged.len(), 1, "{counts:?}");
    assert_eq!(counts.damaged[0].reason, "the compressed data ends too early");
}

#[test]
fn requests_stay_the_same_when_the_dictionary_begins_afresh() {
    let folder = Folder::new();
    let host = |second: u64| format!("192.0.2.{}", second / 10);
    let lines: String = (0..2_000).map(|second| combined(&host(second), second, 200)).collect();
    let mut settings = settings("combined", vec![folder.file("a.log", lines)]);
    settings.dictionary_bytes = 1_000;
    let (requests, _) = read(&settings);
    assert_eq!(requests.len(), 2_000);
    for (second, user) in requests {
        assert_eq!(user, host(second));
    }
    let mut traffic = Traffic::open(&settings).expect("readable");
    while traffic.next().expect("readable").is_some() {}
    assert!(traffic.dictionary().generation() > 10);
    assert!(traffic.dictionary().len() <= 100, "{}", traffic.dictionary().len());
    let (read, all) = traffic.progress();
    assert_eq!(Some(read), all);
}

#[test]
fn lines_are_left_out_as_the_settings_say() {
    let folder = Folder::new();
    let lines = combined("a", 1, 200)
        + &combined("b", 2, 429)
        + &combined("-", 3, 200)
        + &combined("c", 4, 301);
    let mut settings = settings("combined", vec![folder.file("a.log", lines)]);
    settings.conditions = vec!["status != 301".to_owned()];
    settings.skip_statuses = vec![429];
    let (requests, counts) = read(&settings);
    assert_eq!(users(&requests), [(1, "a")]);
    assert_eq!((counts.skipped, counts.skipped_by_status, counts.anonymous), (1, 1, 1));
}

#[test]
fn fields_that_no_line_has_are_named() {
    let folder = Folder::new();
    let line = "{\"t\":1700000001,\"u\":\"a\",\"status\":200}\n";
    let other = "{\"t\":1700000002,\"u\":\"a\",\"plan\":\"free\"}\n";
    let inputs = vec![folder.file("a.json", line), folder.file("b.json", other)];
    let mut settings = settings("jsonl", inputs);
    let maps = ["user_id=u", "time=epoch_s(t)", "attributes.plan=plan"];
    settings.mappings = maps.map(str::to_owned).to_vec();
    settings.conditions = vec!["state != 404".to_owned()];
    let (requests, counts) = read(&settings);
    assert_eq!(requests.len(), 2);
    assert_eq!(counts.absent_fields, ["state"]);
}

#[test]
fn local_times_need_a_zone_and_unclear_ones_are_counted() {
    let folder = Folder::new();
    let times = ["2026-10-25 01:00:00", "2026-10-25 02:30:00", "2026-10-25 03:30:00"];
    let lines: String = times.map(|time| format!("{{\"t\":\"{time}\",\"u\":\"a\"}}\n")).concat();
    let mut settings = settings("jsonl", vec![folder.file("a.json", lines)]);
    settings.mappings = vec!["user_id=u".to_owned(), "time=t".to_owned()];
    let (_, counts) = read(&settings);
    assert_eq!(counts.unread, 3);
    assert_eq!(counts.first_unread[0].reason, "time has no zone: --zone must be given");
    settings.zone = Some("Europe/Berlin".to_owned());
    let (requests, counts) = read(&settings);
    let seconds: Vec<u64> = requests.iter().map(|(second, _)| second - requests[0].0).collect();
    assert_eq!(seconds, [0, 5_400, 12_600], "the earlier half past two");
    assert_eq!((counts.ambiguous_times, counts.skipped_times), (1, 0));
}

#[test]
fn settings_that_contradict_each_other_are_errors() {
    let folder = Folder::new();
    let log = || vec![folder.file("a.log", combined("a", 1, 200))];
    let error = |settings: &TrafficSettings| {
        let error = Traffic::open(settings).map(|_| ()).expect_err("an error");
        let source = std::error::Error::source(&error).map(ToString::to_string);
        format!("{error} {}", source.unwrap_or_default())
    };
    assert!(error(&TrafficSettings::new(Vec::new())).contains("at least one file"));
    assert!(error(&TrafficSettings::new(log())).contains("--format must be given"));
    assert!(error(&settings("jsonl", log())).contains("--map user_id="));
    let twice = vec![TrafficInput::StandardInput, TrafficInput::StandardInput];
    assert!(error(&settings("combined", twice)).contains("standard input"));
    let missing = vec![TrafficInput::File(folder.0.join("missing"))];
    assert!(error(&settings("combined", missing)).contains("cannot be opened"));
    let mut bad = settings("combined", log());
    bad.mappings = vec!["resource=path($target)".to_owned()];
    assert!(error(&bad).contains("target is not a field of the format"));
    bad.mappings = vec!["resource=path($uri".to_owned()];
    let expected = "--map resource \"path($uri\", character 10: must be )";
    assert_eq!(error(&bad), expected);
    bad.mappings = vec!["user_id=forwarded(1)".to_owned()];
    assert!(error(&bad).contains("the format has no X-Forwarded-For"));
    bad.mappings.clear();
    bad.conditions = vec!["status = 200".to_owned()];
    assert_eq!(error(&bad), "--where \"status = 200\", character 8: must be == or =~");
    bad.conditions.clear();
    bad.zone = Some("Europe/Nowhere".to_owned());
    assert!(error(&bad).contains("--zone must be"));
}
