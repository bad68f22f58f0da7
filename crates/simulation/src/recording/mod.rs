//! Recordings: the requests that a service decided, with their times.
//!
//! # Compact form
//!
//! Integers are little endian. `number` is an integer of variable length: seven bits a byte, the
//! lowest first; the highest bit of a byte says that another one follows. `signed` is a number in
//! zigzag: 0, −1, 1, −2 … are 0, 1, 2, 3 …. `text` is its length in bytes, a `number`, and UTF-8.
//!
//! | part | bytes | |
//! | --- | --- | --- |
//! | header | 8 | `RLAASREC` |
//! | | 2 | version of the format: 2; version 1 has no requests in projects |
//! | | 4 | length of the next field, at most 64 KiB |
//! | | … | [`Header`] as JSON |
//! | | 4 | CRC-32 of all bytes before |
//! | block | 4 | length of the payload, at most 8 MiB; 0 is the end of the recording |
//! | | 4 | CRC-32 of: the header's CRC-32 (4 bytes), the block's number from 0 (8), the payload's length (8), the payload |
//! | | … | the payload: records |
//!
//! A record begins with a `number`, its code shifted left by one:
//!
//! | code | record |
//! | --- | --- |
//! | 0 | a new request: time, request. It gets the next number of the dictionary, from 0 |
//! | 1 | requests were lost at this point: a `number`, how many |
//! | 2 | the dictionary begins afresh: numbers before are void |
//! | n + 3 | the request of number n of the dictionary: time |
//!
//! The lowest bit of the shifted code is 1 if the request was refused. The time is `signed`: the
//! microseconds since the record before, since the Unix epoch for the first one of a block. Records
//! are nearly in the order of their times: those of several threads are written one after the other.
//!
//! | request | |
//! | --- | --- |
//! | by user | byte 0; texts: user id, resource; `number`: cost; `number` of attributes, and of each two texts: name, value |
//! | by descriptors | byte 1; text: domain; `number` of descriptors, and of each: `number` of entries, and of each two texts: key, value; `signed`: hits; byte 0, or byte 1 and two `number`s: units and window in microseconds of a limit that the request brought along |
//! | by user in a project | byte 2; text: project; the rest as by user |
//!
//! A request takes 128 bytes of the dictionary, 64 for each attribute, descriptor and entry, and the
//! bytes of its texts. The writer begins it afresh before it takes more than the header's
//! `dictionary_bytes` (at most 1 GiB), so a reader needs no more memory than that.
//!
//! # JSON lines
//!
//! The first line is [`Header`] with `"rlaas_recording":2`. Each other line is a request, or
//! `{"lost":3}`:
//!
//! ```json
//! {"at_us":1700000100000000,"user_id":"alice","resource":"/pay","attributes":{"plan":"free"},"cost":1,"refused":true}
//! {"at_us":1700000100000020,"domain":"web","descriptors":[{"entries":[{"key":"ip","value":"::1"}],"hits":1}]}
//! ```
//!
//! `project`, `resource`, `attributes`, `cost` (1), `hits` (1), `limit` (`{"units":5,"window_us":1000000}`) and
//! `refused` may be absent. Lines have no checksums, so only damage that leaves no valid request is
//! noticed, and a file that was cut between two lines is whole.

mod compact;
mod encoding;
mod error;
mod fingerprint;
mod hashing;
mod header;
mod json_lines;
mod reader;
mod rules;
mod sample;
mod varint;
mod writer;

pub use encoding::{push_descriptors, push_fields};
pub use error::{LineProblem, RecordingError};
pub use hashing::{hash_values, key_fingerprint};
pub use header::{
    HashedHeader, Header, RecordedKeys, SampleHeader, TimeUnit, VERSION, part, part_name,
};
pub use json_lines::JsonLinesWriter;
pub use reader::{Reader, RecordingForm};
pub use rules::{
    KeyError, RulesForRecording, Undecidable, UndecidableRule, rules_for_recordings,
    undercounted_rules,
};
pub use sample::KeySample;
pub use writer::{DEFAULT_DICTIONARY_BYTES, Discarded, EncodedRequest, Rewrite, Writer};

#[cfg(test)]
mod tests;
