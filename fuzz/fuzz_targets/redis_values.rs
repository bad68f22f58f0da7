//! What Redis has beside replies of scripts: control records, cursors of their list, and messages that
//! name changed keys. The first byte selects the kind.

#![no_main]

use libfuzzer_sys::fuzz_target;
use rlaas_limiter::store::fuzzing::{forgotten_keys, is_cursor, overrides_of};

fuzz_target!(|data: &[u8]| {
    let Some((kind, rest)) = data.split_first() else { return };
    match kind % 3 {
        0 => {
            // Names and values in turn, each after its length in one byte.
            let mut texts = Vec::new();
            let mut values = rest;
            while let Some((len, rest)) = values.split_first() {
                let (text, rest) = rest.split_at(usize::from(*len).min(rest.len()));
                texts.push(text.to_vec());
                values = rest;
            }
            let fields: Vec<_> =
                texts.chunks_exact(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect();
            let records = overrides_of("alice", &fields);
            assert!(records.len() <= fields.len(), "at most a record for each field");
            for one in &records {
                assert_eq!(one.key.id(), "alice");
                assert!(one.record.iter().count() > 0, "a record has an override");
            }
        }
        1 => {
            if let Ok(text) = str::from_utf8(rest) {
                let _whatever_it_is = is_cursor(text);
            }
        }
        _ => {
            if let Some(keys) = forgotten_keys(rest) {
                let len: usize = keys.iter().map(|key| key.len() + 2).sum();
                assert_eq!(len, rest.len(), "all bytes are keys");
            }
        }
    }
});
