//! The share of keys for which a rule is enforced.

use std::fmt;

use super::{Key, Percentage};

/// The part of the keys for which a rule is enforced, in millionths: 0 to 1,000,000. For all others
/// the rule decides and counts, as in shadow mode.
///
/// A hash of the key selects the keys, so that every instance selects the same ones, also after a
/// restart and while the store is away. A larger share has all keys of a smaller one.
///
/// ```
/// use rlaas_core::rules::{EnforcedShare, Key};
///
/// let (tenth, half) = (EnforcedShare::new(100_000), EnforcedShare::new(500_000));
/// let keys: Vec<Key> = (0..1000).map(|id| Key::from_encoded("login", &id.to_string())).collect();
/// let enforced = |share: Option<EnforcedShare>| {
///     keys.iter().filter(|key| share.is_some_and(|share| share.contains(key))).count()
/// };
/// assert!((50..150).contains(&enforced(tenth)) && (450..550).contains(&enforced(half)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EnforcedShare(u32);

impl EnforcedShare {
    /// All keys, the default.
    pub const ALL: Self = Self(1_000_000);

    /// Creates a share of `millionths`; `None` if they are more than all.
    pub fn new(millionths: u32) -> Option<Self> {
        Some(Self(millionths)).filter(|share| *share <= Self::ALL)
    }

    /// Returns the share in millionths.
    pub const fn millionths(self) -> u32 {
        self.0
    }

    /// Returns `true` if the rule is enforced for this key.
    pub fn contains(self, key: &Key) -> bool {
        if self == Self::ALL {
            return true;
        }
        // The hash as a fraction of 2^64, in millionths.
        let millionths = (u128::from(hash(key.as_bytes())) * u128::from(Self::ALL.0)) >> 64;
        millionths < u128::from(self.0)
    }
}

/// Writes a percentage, such as `25%`.
impl fmt::Display for EnforcedShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, part) = (self.0 / 10_000, self.0 % 10_000);
        let part = format!(".{part:04}");
        write!(f, "{whole}{}%", part.trim_end_matches('0').trim_end_matches('.'))
    }
}

/// Writes a percentage, such as `25%`.
impl fmt::Display for Percentage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        EnforcedShare(self.0.millionths()).fmt(f)
    }
}

impl Default for EnforcedShare {
    fn default() -> Self {
        Self::ALL
    }
}

/// Hashes a key. The result never changes: it is part of what a share means.
///
/// **Source:** Fowler, Noll, Vo: FNV-1a of 64 bits; its high bits depend little on the last bytes,
/// which the finalizer of `MurmurHash3` (Appleby) corrects.
fn hash(bytes: &[u8]) -> u64 {
    let fnv = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let mixed = (fnv ^ (fnv >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let mixed = (mixed ^ (mixed >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    mixed ^ (mixed >> 33)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(rule: &str, id: fn(u32) -> String) -> Vec<Key> {
        (0..10_000).map(|number| Key::from_encoded(rule, &id(number))).collect()
    }

    fn share(millionths: u32) -> EnforcedShare {
        EnforcedShare::new(millionths).expect("a share")
    }

    #[test]
    fn share_of_keys_is_within_a_point_and_a_half() {
        let ids: [fn(u32) -> String; 3] = [
            |number| number.to_string(),
            |number| format!("user-{number:011}"),
            |number| format!("10.{}.{}.1", number / 256, number % 256),
        ];
        for id in ids {
            for rule in ["", "login", "a"] {
                let keys = keys(rule, id);
                for millionths in [0, 10_000, 100_000, 250_000, 500_000, 990_000, 1_000_000] {
                    let enforced = keys.iter().filter(|key| share(millionths).contains(key));
                    let (found, wanted) = (enforced.count(), millionths as usize / 100);
                    assert!(found.abs_diff(wanted) <= 150, "{rule} {wanted}: {found}");
                }
                assert!(!keys.iter().any(|key| share(0).contains(key)));
                assert!(keys.iter().all(|key| EnforcedShare::ALL.contains(key)));
            }
        }
    }

    #[test]
    fn no_key_falls_out_while_the_share_grows() {
        for key in keys("login", |number| number.to_string()) {
            let first = (0..=1_000).find(|part| share(part * 1_000).contains(&key));
            let first = first.expect("the whole share has each key");
            assert!((first..=1_000).all(|part| share(part * 1_000).contains(&key)), "{key:?}");
        }
    }

    #[test]
    fn rules_select_independently() {
        let half = share(500_000);
        let pairs = keys("one", |number| number.to_string())
            .into_iter()
            .zip(keys("two", |number| number.to_string()));
        let both = pairs.filter(|(one, two)| half.contains(one) && half.contains(two)).count();
        assert!(both.abs_diff(2_500) <= 150, "{both}");
    }

    #[test]
    fn selection_never_changes() {
        // Values of the version that introduced shares: another hash would change who is limited.
        assert_eq!(hash(b""), 0xefd0_1f60_ba99_2926);
        assert_eq!(hash(b"login:alice"), 0xaff1_b1b6_4317_71ca);
    }

    #[test]
    fn share_is_written_as_a_percentage() {
        for (millionths, text) in
            [(0, "0%"), (250_000, "25%"), (1, "0.0001%"), (125_500, "12.55%"), (1_000_000, "100%")]
        {
            assert_eq!(share(millionths).to_string(), text);
        }
    }

    #[test]
    fn share_is_at_most_all() {
        assert_eq!(EnforcedShare::new(1_000_001), None);
        assert_eq!(EnforcedShare::default().millionths(), 1_000_000);
    }
}
