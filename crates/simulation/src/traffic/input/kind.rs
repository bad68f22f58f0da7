//! What an input has, by its first bytes.

/// How many bytes of the first line are looked at.
pub(super) const SNIFFED_BYTES: usize = 256;

/// First bytes of a compact recording.
const COMPACT_MAGIC: &[u8] = b"RLAASREC";

/// First key of the first line of a recording as JSON lines.
const JSON_LINES_KEY: &[u8] = b"\"rlaas_recording\"";

/// What an input has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum InputKind {
    /// Lines of a log, or anything else.
    Text,
    /// A recording of this service, in its compact form.
    CompactRecording,
    /// A recording of this service, as JSON lines.
    JsonRecording,
}

impl InputKind {
    /// Returns what an input has that begins with these decompressed bytes.
    pub fn sniff(first: &[u8]) -> Self {
        if first.starts_with(COMPACT_MAGIC) {
            return Self::CompactRecording;
        }
        let object = first.trim_ascii_start().strip_prefix(b"{");
        match object.map(<[u8]>::trim_ascii_start) {
            Some(keys) if keys.starts_with(JSON_LINES_KEY) => Self::JsonRecording,
            _ => Self::Text,
        }
    }
}

/// Returns the name of a form that is known by its first bytes but not read.
pub(super) fn unsupported_form(first: &[u8]) -> Option<&'static str> {
    let forms: [(&[u8], &str); 6] = [
        (b"\xfd7zXZ\0", "xz"),
        (b"BZh", "bzip2"),
        (b"\x04\x22\x4d\x18", "lz4"),
        (b"PK\x03\x04", "a zip archive"),
        (b"\xff\xfe", "text in UTF-16"),
        (b"\xfe\xff", "text in UTF-16"),
    ];
    forms.into_iter().find(|(magic, _)| first.starts_with(magic)).map(|(_, form)| form)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_known_by_first_bytes() {
        for (first, kind) in [
            (&b"RLAASREC\x01"[..], InputKind::CompactRecording),
            (b"{\"rlaas_recording\":1}\n", InputKind::JsonRecording),
            (b"{ \"rlaas_recording\": {\"version\": 1}}", InputKind::JsonRecording),
            (b"{\"user\":\"rlaas_recording\"}", InputKind::Text),
            (b"RLAASRE", InputKind::Text),
            (b"", InputKind::Text),
        ] {
            assert_eq!(InputKind::sniff(first), kind, "{}", first.escape_ascii());
        }
    }
}
