//! Inputs of all forms, whole and broken.

use std::io::{Cursor, Read, Write};

use flate2::write::GzEncoder;
use proptest::prelude::*;

use super::*;

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).expect("a vector");
    encoder.finish().expect("a vector")
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = zstd::Encoder::new(Vec::new(), 1).expect("an encoder");
    // As the command line's tool does.
    encoder.include_checksum(true).expect("an option");
    encoder.write_all(bytes).expect("a vector");
    encoder.finish().expect("a vector")
}

fn open(bytes: &[u8]) -> Input {
    let reader = Box::new(Cursor::new(bytes.to_vec()));
    Input::from_reader("test".to_owned(), reader, Some(bytes.len() as u64)).expect("readable")
}

/// Returns the lines of an input, and how it ended.
fn read(bytes: &[u8]) -> (Vec<Vec<u8>>, InputEnd) {
    let mut reader = open(bytes).into_lines();
    let mut lines = Vec::new();
    while let Some(line) = reader.next_line().expect("no errors of files") {
        let RawLine::Whole(line) = line else { panic!("{line:?}") };
        lines.push(line.to_vec());
    }
    let status = reader.status();
    assert_eq!(reader.number(), lines.len() as u64);
    if status.end() == Some(InputEnd::Complete) {
        assert_eq!(Some(status.position()), status.size());
    }
    (lines, status.end().expect("an end"))
}

/// A log whose text does not compress to nothing.
fn long_log() -> Vec<u8> {
    let mut state = 1_u64;
    let mut log = Vec::new();
    for number in 0..50_000 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        writeln!(log, "{number} {state}").expect("a vector");
    }
    log
}

fn lines_of(log: &[u8]) -> Vec<Vec<u8>> {
    log.strip_suffix(b"\n").expect("an end").split(|byte| *byte == b'\n').map(Vec::from).collect()
}

#[test]
fn lines_end_in_lf_or_crlf_or_at_the_end() {
    let (lines, end) = read(b"a\nb\r\n\n\0\xff\r\r\nc");
    assert_eq!(lines, [&b"a"[..], b"b", b"", b"\0\xff\r", b"c"]);
    assert_eq!(end, InputEnd::Complete);
    assert_eq!(read(b""), (Vec::new(), InputEnd::Complete));
    assert_eq!(read(b"\xef\xbb\xbfa\n").0, [b"a"]);
}

#[test]
fn compression_is_known_by_first_bytes() {
    let log = long_log();
    for (bytes, compression) in [
        (log.clone(), Compression::None),
        (gzip(&log), Compression::Gzip),
        (zstd(&log), Compression::Zstd),
    ] {
        assert_eq!(open(&bytes).compression(), compression);
        assert_eq!(read(&bytes), (lines_of(&log), InputEnd::Complete), "{compression:?}");
    }
}

#[test]
fn members_and_frames_are_read_one_after_the_other() {
    let empty: &[u8] = b"";
    for compress in [gzip, zstd] {
        let parts = [&b"a\nb"[..], empty, b"c\n", b"d"].map(compress).concat();
        assert_eq!(read(&parts), (lines_of(b"a\nbc\nd\n"), InputEnd::Complete));
        assert_eq!(read(&compress(empty)), (Vec::new(), InputEnd::Complete));
    }
    let skippable = [&[0x50, 0x2a, 0x4d, 0x18, 2, 0, 0, 0, 7, 7][..], &zstd(b"a\n")].concat();
    assert_eq!(read(&skippable), (lines_of(b"a\n"), InputEnd::Complete));
}

#[test]
fn padding_of_gzip_is_skipped_and_other_bytes_are_reported() {
    let padded = [gzip(b"a\nb\n"), vec![0; 300_000]].concat();
    assert_eq!(read(&padded), (lines_of(b"a\nb\n"), InputEnd::Complete));
    let corrupt = |why| InputEnd::Corrupt { why };
    for tail in [&b"x"[..], b"\0\0x", b"\0\x1f\x8b"] {
        let bytes = [&gzip(b"a\nb\n"), tail].concat();
        assert_eq!(read(&bytes), (lines_of(b"a\nb\n"), corrupt(Corruption::AfterGzip)));
    }
    let bytes = [&zstd(b"a\nb\n"), &b"garbage"[..]].concat();
    assert_eq!(read(&bytes), (lines_of(b"a\nb\n"), corrupt(Corruption::AfterZstd)));
}

#[test]
fn truncated_data_are_read_as_far_as_they_go() {
    let log = long_log();
    let all = lines_of(&log);
    for whole in [gzip(&log), zstd(&log)] {
        for length in [whole.len() - 1, whole.len() - 9, whole.len() / 2, 20, 9] {
            let (lines, end) = read(&whole[..length]);
            assert_eq!(end, InputEnd::Truncated, "{length}");
            assert!(lines.len() <= all.len() && lines == all[..lines.len()], "{length}");
            assert!(length < whole.len() / 2 || lines.len() > all.len() / 4, "{}", lines.len());
        }
    }
}

#[test]
fn corrupt_data_are_read_as_far_as_they_go() {
    let log = long_log();
    let all = lines_of(&log);
    for (compress, why) in
        [(gzip as fn(&[u8]) -> Vec<u8>, Corruption::Gzip), (zstd, Corruption::Zstd)]
    {
        let mut bytes = compress(&log);
        let half = bytes.len() / 2;
        bytes[half..half + 64].fill(0xff);
        let (lines, end) = read(&bytes);
        assert_eq!(end, InputEnd::Corrupt { why });
        assert_eq!(lines[..10], all[..10]);
    }
    let mut bytes = gzip(b"a\n");
    let crc = bytes.len() - 8;
    bytes[crc] ^= 1;
    assert_eq!(read(&bytes), (lines_of(b"a\n"), InputEnd::Corrupt { why: Corruption::Gzip }));
}

#[test]
fn a_window_of_zstd_above_the_bound_is_refused() {
    let compress = |window_log| {
        let mut encoder = zstd::Encoder::new(Vec::new(), 1).expect("an encoder");
        encoder.window_log(window_log).expect("a window");
        encoder.write_all(b"a\n").expect("a vector");
        encoder.finish().expect("a vector")
    };
    let (lines, end) = read(&compress(MAX_ZSTD_WINDOW_LOG));
    assert_eq!((lines.len(), end), (1, InputEnd::Complete));
    let InputEnd::Corrupt { why } = read(&compress(MAX_ZSTD_WINDOW_LOG + 1)).1 else {
        panic!("a larger window was read")
    };
    assert_eq!(why.to_string(), "a zstd frame has a window above 128 MiB");
}

#[test]
fn a_long_line_is_skipped_and_its_beginning_kept() {
    let line = |length: usize| [vec![b'x'; length], b"\n".to_vec()].concat();
    for length in [MAX_LINE_BYTES + 1, MAX_LINE_BYTES + 2, 3 * MAX_LINE_BYTES] {
        let log = [b"a\n".to_vec(), line(length), b"b\n".to_vec(), line(MAX_LINE_BYTES)].concat();
        for bytes in [log.clone(), gzip(&log), log[..log.len() - 1].to_vec()] {
            let mut lines = open(&bytes).into_lines();
            let mut next = || match lines.next_line().expect("no errors of files") {
                None => (0, false),
                Some(RawLine::Whole(line)) => (line.len() as u64, true),
                Some(RawLine::TooLong { start, length }) => {
                    assert_eq!(start, [b'x'; 256]);
                    (length, false)
                }
            };
            let found = [next(), next(), next(), next(), next()];
            let whole = MAX_LINE_BYTES as u64;
            assert_eq!(
                found,
                [(1, true), (length as u64, false), (1, true), (whole, true), (0, false)]
            );
        }
    }
}

#[test]
fn other_forms_are_named() {
    for (first, form) in [
        (&b"\xfd7zXZ\0rest"[..], "test: is xz, must be text, gzip or zstd"),
        (b"BZh9", "test: is bzip2, must be text, gzip or zstd"),
        (b"\xff\xfea\0", "test: is text in UTF-16, must be text, gzip or zstd"),
    ] {
        let reader = Box::new(Cursor::new(first.to_vec()));
        let error = Input::from_reader("test".to_owned(), reader, None).expect_err("not read");
        assert_eq!(error.to_string(), form);
    }
}

#[test]
fn recordings_are_known_and_streamed_from_their_first_byte() {
    for (bytes, kind) in [
        (&b"RLAASREC\x01\n rest"[..], InputKind::CompactRecording),
        (b"{\"rlaas_recording\":1}\n{}\n", InputKind::JsonRecording),
        (b"GET / HTTP/1.1", InputKind::Text),
    ] {
        for input in [open(bytes), open(&gzip(bytes)), open(&zstd(bytes))] {
            assert_eq!(input.kind(), kind);
            let (status, mut stream, mut read) = (input.status(), input.into_stream(), Vec::new());
            stream.read_to_end(&mut read).expect("no errors of files");
            assert_eq!((&*read, status.end()), (bytes, Some(InputEnd::Complete)));
        }
    }
}

#[test]
fn errors_of_files_are_errors() {
    struct Broken;
    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::ErrorKind::PermissionDenied.into())
        }
    }
    for first in [&b"a\n"[..], &gzip(&long_log())[..1_000], &zstd(&long_log())[..1_000]] {
        let reader = Box::new(Cursor::new(first.to_vec()).chain(Broken));
        let opened = Input::from_reader("test".to_owned(), reader, None);
        let error = opened.map(Input::into_lines).and_then(|mut lines| {
            while lines.next_line()?.is_some() {}
            Ok(lines.status().end())
        });
        assert!(matches!(error, Err(InputError::Read { .. })), "{error:?}");
    }
    let folder = TrafficInput::File(std::env::temp_dir());
    assert!(matches!(folder.open(), Err(InputError::Folder { .. })));
    let missing = TrafficInput::File("/nonexistent/log".into());
    assert!(matches!(missing.peek(1), Err(InputError::Open { .. })));
}

#[test]
fn first_lines_are_those_of_the_file() {
    let path = std::env::temp_dir().join(format!("rlaas-peek-{}", std::process::id()));
    std::fs::write(&path, gzip(b"a\nb\nc\n")).expect("a file");
    let input = TrafficInput::File(path.clone());
    let first = input.peek(2).expect("readable").expect("a file");
    assert_eq!((first.kind, &*first.lines), (InputKind::Text, &[b"a".to_vec(), b"b".to_vec()][..]));
    std::fs::remove_file(&path).expect("a file");
    assert_eq!(TrafficInput::StandardInput.peek(1).expect("no error"), None);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn random_bytes_are_read_to_an_end(
        bytes in prop::collection::vec(any::<u8>(), 0..2_000),
        magic in prop::sample::select(vec![&b""[..], b"\x1f\x8b\x08\0", b"\x28\xb5\x2f\xfd"]),
    ) {
        let bytes = [magic, &bytes].concat();
        let reader = Box::new(Cursor::new(bytes));
        if let Ok(input) = Input::from_reader("test".to_owned(), reader, None) {
            let mut lines = input.into_lines();
            while lines.next_line().expect("no errors of files").is_some() {}
            prop_assert!(lines.status().end().is_some());
        }
    }

    #[test]
    fn lines_are_those_of_the_text(text in "[ab\n]{0,40}") {
        let (lines, end) = read(text.as_bytes());
        let expected: Vec<_> = text.split_inclusive('\n').map(|line| line.trim_end_matches('\n')).collect();
        prop_assert_eq!(lines, expected.iter().map(|line| line.as_bytes()).collect::<Vec<_>>());
        prop_assert_eq!(end, InputEnd::Complete);
    }
}
