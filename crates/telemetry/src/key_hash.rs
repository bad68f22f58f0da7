//! The hash of ids that are shown or kept where they may not be read.

use ring::hmac;
use rlaas_core::rules::KeyHasher;

/// Returns the hasher with this key.
///
/// **Source:** RFC 2104, HMAC with SHA-256, cut to 128 bits.
pub fn keyed(key: &[u8]) -> KeyHasher {
    let key = hmac::Key::new(hmac::HMAC_SHA256, key);
    KeyHasher::new(move |value| {
        let tag = hmac::sign(&key, value);
        let mut hash = [0; 16];
        hash.copy_from_slice(&tag.as_ref()[..16]);
        hash
    })
}
