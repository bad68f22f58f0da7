//! Round trips, truncation and damage.

use proptest::collection::vec;
use proptest::prelude::*;
use rlaas_core::clock::Timestamp;

use super::*;
use crate::{RecordedDescriptor, RecordedDescriptors, RecordedFields, RecordedRequest};

/// Cases of each property test: `SOAK` asks for more.
fn config() -> ProptestConfig {
    ProptestConfig::with_cases(if std::env::var_os("SOAK").is_some() { 5_000 } else { 100 })
}

#[derive(Clone, Debug, PartialEq)]
enum Item {
    Request(u64, RecordedRequest, bool),
    Lost(u64),
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

fn items() -> impl Strategy<Value = Vec<Item>> {
    let times =
        prop_oneof![3 => 1_700_000_000_000_000..1_700_000_001_000_000_u64, 1 => any::<u64>()];
    let item = prop_oneof![
        8 => (times, requests(), any::<bool>()).prop_map(|(at, one, was)| Item::Request(at, one, was)),
        1 => (1..1000_u64).prop_map(Item::Lost),
    ];
    vec(item, 0..60)
}

fn header() -> Header {
    Header { writer: "test".to_owned(), dictionary_bytes: 2_000, ..Header::default() }
}

/// Writes items in blocks of about `in_block`.
fn compact(items: &[Item], in_block: usize) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), &header()).expect("memory");
    for (position, item) in items.iter().enumerate() {
        match item {
            Item::Request(at, request, was_refused) => writer
                .write(Timestamp::from_micros(*at), request, *was_refused)
                .expect("a small request"),
            Item::Lost(count) => writer.write_lost(*count).expect("memory"),
        }
        if position % in_block == in_block - 1 {
            writer.flush().expect("memory");
        }
    }
    writer.finish().expect("memory")
}

fn lines(items: &[Item]) -> Vec<u8> {
    let mut writer = JsonLinesWriter::new(Vec::new(), &header()).expect("memory");
    for item in items {
        match item {
            Item::Request(at, request, was_refused) => {
                writer.write(Timestamp::from_micros(*at), request, *was_refused).expect("memory");
            }
            Item::Lost(count) => writer.write_lost(*count).expect("memory"),
        }
    }
    writer.finish().expect("memory")
}

/// Reads all that can be read, without `Lost`; the count of lost requests; and the error.
fn read(bytes: &[u8]) -> (Vec<Item>, u64, Option<RecordingError>) {
    let mut items = Vec::new();
    let mut reader = match Reader::new(bytes) {
        Ok(reader) => reader,
        Err(error) => return (items, 0, Some(error)),
    };
    loop {
        match reader.next() {
            Ok(Some(arrival)) => {
                let request = reader.dictionary().request(arrival.request).clone();
                items.push(Item::Request(arrival.at.as_micros(), request, arrival.was_refused));
                assert!(reader.dictionary().bytes() < 10_000, "the dictionary is bounded");
            }
            Ok(None) => return (items, reader.lost(), None),
            Err(error) => {
                assert!(matches!(reader.next(), Ok(None)), "nothing follows an error");
                return (items, reader.lost(), Some(error));
            }
        }
    }
}

fn without_lost(items: &[Item]) -> (Vec<Item>, u64) {
    let lost = items.iter().map(|item| if let Item::Lost(count) = item { *count } else { 0 });
    let requests = items.iter().filter(|item| matches!(item, Item::Request(..)));
    (requests.cloned().collect(), lost.sum())
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn both_forms_come_back(items in items(), in_block in 1..20_usize) {
        let (requests, lost) = without_lost(&items);
        for bytes in [compact(&items, in_block), lines(&items)] {
            let (found, found_lost, error) = read(&bytes);
            prop_assert!(error.is_none(), "{error:?}");
            prop_assert_eq!(&found, &requests);
            prop_assert_eq!(found_lost, lost);
        }
    }

    #[test]
    fn a_cut_is_noticed_and_what_is_before_is_readable(items in items(), cut in any::<prop::sample::Index>()) {
        let bytes = compact(&items, 5);
        let cut = cut.index(bytes.len());
        let (found, _, error) = read(&bytes[..cut]);
        prop_assert!(error.is_some(), "cut at {cut} of {}", bytes.len());
        let (requests, _) = without_lost(&items);
        prop_assert!(requests.starts_with(&found));
    }

    #[test]
    fn a_flipped_bit_is_noticed_and_what_is_before_is_readable(
        items in items(), at in any::<prop::sample::Index>(), bit in 0..8_u8,
    ) {
        let mut bytes = compact(&items, 5);
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        let (found, _, error) = read(&bytes);
        prop_assert!(error.is_some(), "byte {at} of {}", bytes.len());
        let (requests, _) = without_lost(&items);
        prop_assert!(requests.starts_with(&found));
    }

    #[test]
    fn blocks_with_any_records_are_read_without_panic(payload in vec(any::<u8>(), 0..200)) {
        let (mut bytes, checksum) = compact::header_bytes(&header()).expect("a small header");
        bytes.extend_from_slice(&checksum.head(0, &payload));
        bytes.extend_from_slice(&payload);
        read(&bytes);
    }

    #[test]
    fn any_bytes_are_read_without_panic(payload in vec(any::<u8>(), 0..200), prefix in 0..3_usize) {
        let mut bytes = [&b""[..], b"RLAASREC\x02\0", b"{\"rlaas_recording\":2}\n"][prefix].to_vec();
        bytes.extend_from_slice(&payload);
        read(&bytes);
    }
}

fn by(user_id: &str) -> RecordedRequest {
    let user_id = user_id.into();
    RecordedRequest::Fields(RecordedFields { user_id, cost: 1, ..RecordedFields::default() })
}

#[test]
fn a_known_request_takes_few_bytes() {
    let mut writer = Writer::new(Vec::new(), &header()).expect("memory");
    let empty = writer.len();
    for position in 0..1_000 {
        writer.write(Timestamp::from_micros(100 * position), &by("alice"), false).expect("memory");
    }
    writer.flush().expect("memory");
    assert!(writer.len() - empty < 3_100, "{}", writer.len() - empty);
}

#[test]
fn the_dictionary_begins_afresh_before_it_is_too_large() {
    let items: Vec<Item> = (0..100)
        .map(|number| Item::Request(number, by(&format!("user-{number}")), false))
        .collect();
    let bytes = compact(&items, 30);
    let mut reader = Reader::new(&*bytes).expect("a recording");
    let mut most = 0;
    while reader.next().expect("whole").is_some() {
        most = most.max(reader.dictionary().len());
    }
    assert_eq!((most, reader.dictionary().generation()), (14, 7));
}

#[test]
fn a_block_that_could_not_be_written_is_left_out() {
    let mut writer = Writer::new(Vec::new(), &header()).expect("memory");
    let at = Timestamp::from_micros;
    writer.write(at(1), &by("alice"), false).expect("memory");
    writer.flush().expect("memory");
    writer.write(at(2), &by("alice"), false).expect("memory");
    writer.write(at(3), &by("bob"), false).expect("memory");
    writer.write_lost(5).expect("memory");
    assert_eq!(writer.discard(), Discarded { requests: 2, lost: 5 });
    writer.write_lost(7).expect("memory");
    writer.write(at(4), &by("bob"), true).expect("memory");
    let (found, lost, error) = read(&writer.finish().expect("memory"));
    assert!(error.is_none(), "{error:?}");
    assert_eq!(found, [Item::Request(1, by("alice"), false), Item::Request(4, by("bob"), true)]);
    assert_eq!(lost, 7);
}

#[test]
fn requests_are_rewritten_once_each() {
    let mut writer =
        Writer::new(Vec::new(), &header()).expect("memory").with_rewrite(Box::new(|request| {
            match request {
                RecordedRequest::Fields(fields) => by(&format!("<{}>", fields.user_id)),
                other @ RecordedRequest::Descriptors(_) => other,
            }
        }));
    for _ in 0..2 {
        writer.write(Timestamp::EPOCH, &by("alice"), false).expect("memory");
    }
    let (found, ..) = read(&writer.finish().expect("memory"));
    assert_eq!(found, vec![Item::Request(0, by("<alice>"), false); 2]);
}

#[test]
fn headers_that_can_not_be_are_refused() {
    let absurd = Header { dictionary_bytes: (1 << 30) + 1, ..Header::default() };
    let (bytes, _) = compact::header_bytes(&absurd).expect("a small header");
    assert!(matches!(Reader::new(&*bytes), Err(RecordingError::Header(_))));
    assert!(matches!(Writer::new(Vec::new(), &absurd), Err(RecordingError::Header(_))));
    let (mut newer, _) = compact::header_bytes(&header()).expect("a small header");
    newer[8] = 3;
    assert!(matches!(Reader::new(&*newer), Err(RecordingError::Newer(3))));
    for bytes in [&b""[..], b"GET / HTTP/1.1", b"{\"at_us\":1}\n", b"RLAA"] {
        assert!(Reader::new(bytes).is_err(), "{bytes:?}");
    }
}

#[test]
fn lines_say_what_is_wrong_with_them() {
    for (line, expected) in [
        ("{\"at_us\":1,\"user_id\":\"a\"", "line 2 of the recording is truncated"),
        ("{\"at_us\":1}\n", "must have user_id, or domain and descriptors, or lost"),
        ("{\"user_id\":\"a\"}\n", "must have user_id"),
        ("{\"at_us\":1,\"user\":\"a\"}\n", "unknown field `user`"),
        ("{\"at_us\":1,\"user_id\":\"a\",\"domain\":\"d\",\"descriptors\":[]}\n", "must have"),
    ] {
        let (found, _, error) = read(format!("{{\"rlaas_recording\":1}}\n{line}").as_bytes());
        let error = error.expect("not a request").to_string();
        assert!(error.contains(expected) && found.is_empty(), "{line}: {error}");
    }
    let short = b"{\"rlaas_recording\":1}\n\n{\"at_us\":1,\"user_id\":\"alice\"}";
    assert_eq!(read(short).0, [Item::Request(1, by("alice"), false)]);
}
