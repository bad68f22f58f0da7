//! A sample of keys: all requests of a share of the keys, and none of the others.
//!
//! Whether a key is in the sample depends on the key and on the hash alone, so that all instances
//! with the same one record the same keys, and a larger share has all keys of a smaller one.

use std::fmt::Write;

use rlaas_core::rules::{KeyHasher, Part};

/// Selects a share of keys.
#[derive(Clone, Debug)]
pub struct KeySample {
    share_ppm: u32,
    by: Box<[Part]>,
    hasher: KeyHasher,
}

impl KeySample {
    /// The sample of everything, in millionths.
    pub const WHOLE: u32 = 1_000_000;

    /// Creates a sample of a share, in millionths. The key of a request by user, resource and
    /// attributes are the values of the parts `by`.
    pub fn new(share_ppm: u32, by: impl Into<Box<[Part]>>, hasher: KeyHasher) -> Self {
        Self { share_ppm, by: by.into(), hasher }
    }

    /// Returns `true` if the key of a request is in the sample. `value` returns the value of a part;
    /// `None` if the request does not have it.
    pub fn has_fields<'a>(&self, value: impl Fn(&Part) -> Option<&'a str>) -> bool {
        let mut key = "fields".to_owned();
        for part in &self.by {
            match value(part) {
                Some(value) => push(&mut key, value),
                None => key.push('-'),
            }
        }
        self.has(&key)
    }

    /// Returns `true` if the key of a descriptor, its domain and its entries, is in the sample.
    pub fn has_descriptor<'a>(
        &self,
        domain: &str,
        entries: impl Iterator<Item = (&'a str, &'a str)>,
    ) -> bool {
        let mut key = "descriptor".to_owned();
        push(&mut key, domain);
        for (name, value) in entries {
            push(&mut key, name);
            push(&mut key, value);
        }
        self.has(&key)
    }

    fn has(&self, key: &str) -> bool {
        let hash = u128::from_le_bytes(self.hasher.derive(key)) & u128::from(u64::MAX);
        (hash * u128::from(Self::WHOLE)) >> 64 < self.share_ppm.into()
    }
}

/// Appends a text in a way that no other texts have: with its length before it.
fn push(key: &mut String, text: &str) {
    write!(key, " {}:{text}", text.len()).expect("a string takes all that is written");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Not a keyed hash, but it mixes all bytes (FNV-1a, and a last step for the high bits).
    fn hasher(key: u8) -> KeyHasher {
        KeyHasher::new(move |value| {
            let mix =
                |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
            let hash = value.iter().fold(0xcbf2_9ce4_8422_2325 ^ u64::from(key), mix);
            let hash = (hash ^ (hash >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            u128::from(hash ^ (hash >> 29)).to_le_bytes()
        })
    }

    fn has(sample: &KeySample, user: &str, plan: Option<&str>) -> bool {
        sample.has_fields(|part| match part {
            Part::UserId => Some(user),
            _ => plan,
        })
    }

    #[test]
    fn a_sample_has_its_share_of_the_keys() {
        let sample = |share_ppm| KeySample::new(share_ppm, [Part::UserId], hasher(7));
        let users: Vec<String> = (0..10_000).map(|number| format!("user-{number}")).collect();
        let tenth: Vec<_> = users.iter().filter(|user| has(&sample(100_000), user, None)).collect();
        assert!((800..1_200).contains(&tenth.len()), "{}", tenth.len());
        assert!(tenth.iter().all(|user| has(&sample(200_000), user, None)), "a sample grows");
        assert!(users.iter().all(|user| has(&sample(KeySample::WHOLE), user, None)));
        assert!(!users.iter().any(|user| has(&sample(0), user, None)));
        let other = KeySample::new(100_000, [Part::UserId], hasher(8));
        assert!(tenth.iter().any(|user| !has(&other, user, None)), "another key, other keys");
    }

    #[test]
    fn the_key_has_the_parts_of_the_sample_alone() {
        let plan = Part::Attribute("plan".to_owned());
        let users = KeySample::new(500_000, [Part::UserId], hasher(1));
        let both = KeySample::new(500_000, [Part::UserId, plan], hasher(1));
        let (mut differing, mut absent) = (0, 0);
        for number in 0..100 {
            let user = number.to_string();
            assert_eq!(has(&users, &user, Some("free")), has(&users, &user, Some("pro")));
            differing +=
                u32::from(has(&both, &user, Some("free")) != has(&both, &user, Some("pro")));
            absent += u32::from(has(&both, &user, Some("")) != has(&both, &user, None));
        }
        assert!(differing > 20 && absent > 20, "{differing} {absent}");
    }

    #[test]
    fn a_descriptor_is_selected_by_its_domain_and_all_entries() {
        let sample = KeySample::new(500_000, [], hasher(3));
        let has = |domain: &str, entries: &[(&str, &str)]| {
            sample.has_descriptor(domain, entries.iter().copied())
        };
        let differing = |of: &dyn Fn(&str) -> (bool, bool)| {
            (0..100)
                .filter(|number| {
                    let (one, other) = of(&number.to_string());
                    one != other
                })
                .count()
        };
        assert!(differing(&|ip| (has("a", &[("ip", ip)]), has("b", &[("ip", ip)]))) > 20);
        assert!(
            differing(&|ip| (has("a", &[("ip", ip)]), has("a", &[("ip", ip), ("x", "")]))) > 20
        );
        assert_eq!(differing(&|ip| (has("a", &[("ip", ip)]), has("a", &[("ip", ip)]))), 0);
    }
}
