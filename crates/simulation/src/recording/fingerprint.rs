//! A keyed hash that is the same on every machine: it finds known requests, and selects the keys of
//! a sample.
//!
//! **Source:** Aumasson and Bernstein, "`SipHash`: a fast short-input PRF", INDOCRYPT 2012:
//! SipHash-2-4 with 128 bits of output.

use std::fmt;
use std::hash::{BuildHasher, RandomState};

/// The key of a hash.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct FingerprintKey(u64, u64);

impl FingerprintKey {
    pub(super) fn from_bytes(key: [u8; 16]) -> Self {
        let half = |start: usize| {
            let bytes = key[start..start + 8].try_into().expect("eight bytes");
            u64::from_le_bytes(bytes)
        };
        Self(half(0), half(8))
    }

    /// Returns a random key.
    pub(super) fn random() -> Self {
        // `RandomState` has new random keys each time.
        Self(RandomState::new().hash_one(0), RandomState::new().hash_one(1))
    }

    /// Hashes bytes to 128 bits.
    pub(super) fn hash(self, bytes: &[u8]) -> u128 {
        let Self(k0, k1) = self;
        let mut state = [
            k0 ^ 0x736f_6d65_7073_6575,
            k1 ^ 0x646f_7261_6e64_6f6d ^ 0xee,
            k0 ^ 0x6c79_6765_6e65_7261,
            k1 ^ 0x7465_6462_7974_6573,
        ];
        let mut words = bytes.chunks_exact(8);
        for word in &mut words {
            absorb(&mut state, u64::from_le_bytes(word.try_into().expect("eight bytes")));
        }
        let mut last = [0; 8];
        last[..words.remainder().len()].copy_from_slice(words.remainder());
        last[7] = bytes.len().to_le_bytes()[0];
        absorb(&mut state, u64::from_le_bytes(last));
        state[2] ^= 0xee;
        let low = finish(&mut state);
        state[1] ^= 0xdd;
        let high = finish(&mut state);
        u128::from(low) | u128::from(high) << 64
    }
}

impl fmt::Debug for FingerprintKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FingerprintKey")
    }
}

#[inline]
fn absorb(state: &mut [u64; 4], word: u64) {
    state[3] ^= word;
    round(state);
    round(state);
    state[0] ^= word;
}

#[inline]
fn finish(state: &mut [u64; 4]) -> u64 {
    for _ in 0..4 {
        round(state);
    }
    state[0] ^ state[1] ^ state[2] ^ state[3]
}

#[inline]
fn round([a, b, c, d]: &mut [u64; 4]) {
    *a = a.wrapping_add(*b);
    *b = b.rotate_left(13) ^ *a;
    *a = a.rotate_left(32);
    *c = c.wrapping_add(*d);
    *d = d.rotate_left(16) ^ *c;
    *a = a.wrapping_add(*d);
    *d = d.rotate_left(21) ^ *a;
    *c = c.wrapping_add(*b);
    *b = b.rotate_left(17) ^ *c;
    *c = c.rotate_left(32);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hash_is_sip_hash_of_128_bits() {
        // The reference implementation's vectors for the inputs of 0, 1 and 8 bytes 0, 1, 2, …
        let key: [u8; 16] = std::array::from_fn(|at| at.to_le_bytes()[0]);
        let key = FingerprintKey::from_bytes(key);
        let hex = |len: u8| {
            let bytes: Vec<u8> = (0..len).collect();
            key.hash(&bytes).to_le_bytes().map(|byte| format!("{byte:02x}")).concat()
        };
        assert_eq!(hex(0), "a3817f04ba25a8e66df67214c7550293");
        assert_eq!(hex(1), "da87c1d86b99af44347659119b22fc45");
        assert_eq!(hex(8), "3b62a9ba6258f5610f83e264f31497b4");
    }
}
