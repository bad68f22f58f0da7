//! Round trips, blocks that can't be written, and lines that are none.

use proptest::collection::vec;
use proptest::prelude::*;
use rlaas_core::clock::Timestamp;

use super::*;
use crate::{RecordedDescriptor, RecordedDescriptors, RecordedFields, RecordedRequest};

/// Cases of each property test: `SOAK` asks for more.
fn config() -> ProptestConfig {
    ProptestConfig::with_cases(if std::env::var_os("SOAK").is_some() { 5_000 } else { 100 })
}

fn texts() -> impl Strategy<Value = Box<str>> {
    prop_oneof!["[a-c]", ".{0,12}"].prop_map(Into::into)
}

fn requests() -> impl Strategy<Value = RecordedRequest> {
    let attributes = proptest::collection::btree_map(texts(), texts(), 0..3);
    let fields = (texts(), texts(), texts(), attributes, any::<u32>()).prop_map(
        |(project, user_id, resource, attributes, cost)| {
            let attributes = attributes.into_iter().collect();
            RecordedRequest::Fields(RecordedFields { project, user_id, resource, attributes, cost })
        },
    );
    let hits = -i64::from(u32::MAX)..=i64::from(u32::MAX);
    let limit = proptest::option::of(any::<(u64, u64)>());
    let descriptor =
        (vec((texts(), texts()), 0..3), hits, limit).prop_map(|(entries, hits, limit)| {
            RecordedDescriptor { entries: entries.into(), hits, limit }
        });
    let descriptors = (texts(), vec(descriptor, 0..3)).prop_map(|(domain, descriptors)| {
        let descriptors = descriptors.into();
        RecordedRequest::Descriptors(RecordedDescriptors { domain, descriptors })
    });
    prop_oneof![3 => fields, 1 => descriptors]
}

fn recorded_lines() -> impl Strategy<Value = Vec<RecordedLine>> {
    let request =
        (any::<u64>(), requests(), any::<bool>()).prop_map(|(at, request, was_refused)| {
            RecordedLine::Request { at: Timestamp::from_micros(at), request, was_refused }
        });
    let line = prop_oneof![8 => request, 1 => (1..1000_u64).prop_map(RecordedLine::Lost)];
    vec(line, 0..60)
}

fn header() -> Header {
    Header { writer: "test".to_owned(), ..Header::default() }
}

/// Writes lines in blocks of about `in_block`.
fn written(lines: &[RecordedLine], in_block: usize, form: RecordingForm) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), form, &header()).expect("memory");
    for (position, line) in lines.iter().enumerate() {
        writer.write(line.clone()).expect("memory");
        if position % in_block == in_block - 1 {
            writer.flush().expect("memory");
        }
    }
    writer.flush().expect("memory");
    assert_eq!(writer.len(), writer.output().len() as u64);
    std::mem::take(writer.output())
}

/// Reads the header and all lines.
fn read(bytes: &[u8]) -> Vec<RecordedLine> {
    let mut lines = bytes.split_inclusive(|byte| *byte == b'\n');
    let first = Header::read(lines.next().expect("a header")).expect("readable");
    assert_eq!(first, Some(header()));
    lines.map(|line| RecordedLine::read(line).expect("a line")).collect()
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn both_forms_come_back(lines in recorded_lines(), in_block in 1..20_usize) {
        let plain = written(&lines, in_block, RecordingForm::Plain);
        prop_assert_eq!(&read(&plain), &lines);
        let zstd = written(&lines, in_block, RecordingForm::Zstd);
        prop_assert_eq!(zstd::decode_all(&*zstd).expect("zstd"), plain);
    }

    #[test]
    fn any_bytes_are_read_without_panic(line in vec(any::<u8>(), 0..200)) {
        let _not_one = (Header::read(&line), RecordedLine::read(&line));
        let _not_one = Header::read(&[b"{\"rlaas_recording\":", &*line].concat());
    }
}

fn by(user_id: &str, at: u64) -> RecordedLine {
    let fields = RecordedFields { user_id: user_id.into(), cost: 1, ..RecordedFields::default() };
    let (at, request) = (Timestamp::from_micros(at), RecordedRequest::Fields(fields));
    RecordedLine::Request { at, request, was_refused: false }
}

#[test]
fn a_block_that_could_not_be_written_is_left_out() {
    let mut writer = Writer::new(Vec::new(), RecordingForm::Plain, &header()).expect("memory");
    writer.write(by("alice", 1)).expect("memory");
    writer.flush().expect("memory");
    let len = writer.len();
    writer.write(by("alice", 2)).expect("memory");
    writer.write(by("bob", 3)).expect("memory");
    writer.write(RecordedLine::Lost(5)).expect("memory");
    assert_eq!(writer.discard(), Discarded { requests: 2, lost: 5 });
    assert_eq!(writer.len(), len);
    writer.write(RecordedLine::Lost(7)).expect("memory");
    writer.write(by("bob", 4)).expect("memory");
    writer.flush().expect("memory");
    assert_eq!(read(writer.output()), [by("alice", 1), RecordedLine::Lost(7), by("bob", 4)]);
}

#[test]
fn a_compressed_recording_is_whole_after_each_block() {
    let mut writer = Writer::new(Vec::new(), RecordingForm::Zstd, &header()).expect("memory");
    for at in 0..3 {
        writer.write(by("alice", at)).expect("memory");
        writer.flush().expect("memory");
        let plain = zstd::decode_all(&**writer.output()).expect("whole frames");
        assert_eq!(read(&plain).len() as u64, at + 1);
    }
}

#[test]
fn other_headers_are_none_or_refused_by_name() {
    for line in ["", "GET / HTTP/1.1", "{\"at_us\":1}", "RLAA"] {
        assert!(matches!(Header::read(line.as_bytes()), Ok(None)), "{line}");
    }
    let error = |line: &[u8]| Header::read(line).expect_err("an error").to_string();
    assert!(error(b"RLAASREC\x02\0\0").contains("binary form, which was removed"));
    assert_eq!(error(b"{\"rlaas_recording\":3}"), "recording of version 3: must be at most 2");
    assert!(error(b"{\"rlaas_recording\":x").contains("header of the recording"));
    let old = br#"{"rlaas_recording":1,"time_unit":"us","dictionary_bytes":5}"#;
    assert_eq!(Header::read(old).expect("readable"), Some(Header::default()));
}

#[test]
fn lines_say_what_is_wrong_with_them() {
    for (line, expected) in [
        ("{\"at_us\":1,\"user_id\":\"a\"", "EOF while parsing"),
        ("{\"at_us\":1}", "must have at_us, and user_id or domain and descriptors, or lost"),
        ("{\"user_id\":\"a\"}", "must have at_us"),
        ("{\"at_us\":1,\"user\":\"a\"}", "unknown field `user`"),
        ("{\"at_us\":1,\"user_id\":\"a\",\"domain\":\"d\",\"descriptors\":[]}", "must have"),
        ("{\"at_us\":1,\"cost\":1,\"domain\":\"d\",\"descriptors\":[]}", "must have"),
        ("{\"at_us\":1,\"lost\":1}", "must have"),
        ("{}", "must have"),
    ] {
        let error = RecordedLine::read(line.as_bytes()).expect_err(line).to_string();
        assert!(error.contains(expected), "{line}: {error}");
    }
    let short = RecordedLine::read(b"{\"at_us\":1,\"user_id\":\"alice\"}");
    assert_eq!(short.expect("a line"), by("alice", 1));
}
