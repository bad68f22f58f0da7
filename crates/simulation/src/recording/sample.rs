//! A sample of keys: all requests of a share of the keys, and none of the others.
//!
//! Whether a key is in the sample depends on the key and on the key of the hash alone, so that all
//! instances with the same one record the same keys, and a larger share has all keys of a smaller
//! one.

use rlaas_core::rules::Part;
use smallvec::SmallVec;

use super::fingerprint::FingerprintKey;

/// Bytes that a key is hashed by.
type KeyBytes = SmallVec<[u8; 256]>;

/// Selects a share of keys.
#[derive(Clone, Debug)]
pub struct KeySample {
    share_ppm: u32,
    by: Box<[Part]>,
    key: FingerprintKey,
}

impl KeySample {
    /// The sample of everything, in millionths.
    pub const WHOLE: u32 = 1_000_000;

    /// Creates a sample of a share, in millionths. The key of a request by user, resource and
    /// attributes are the values of the parts `by`. `key` is the key of the hash.
    pub fn new(share_ppm: u32, by: impl Into<Box<[Part]>>, key: [u8; 16]) -> Self {
        Self { share_ppm, by: by.into(), key: FingerprintKey::from_bytes(key) }
    }

    /// Returns `true` if the key of a request is in the sample. `value` returns the value of a part;
    /// `None` if the request does not have it.
    #[inline]
    pub fn has_fields<'a>(&self, value: impl Fn(&Part) -> Option<&'a str>) -> bool {
        if self.share_ppm >= Self::WHOLE {
            return true;
        }
        let mut bytes = KeyBytes::from_slice(&[0]);
        for part in &self.by {
            match value(part) {
                Some(value) => push_text(&mut bytes, value),
                None => bytes.push(0),
            }
        }
        self.has(&bytes)
    }

    /// Returns `true` if the key of a descriptor, its domain and its entries, is in the sample.
    pub fn has_descriptor<'a>(
        &self,
        domain: &str,
        entries: impl Iterator<Item = (&'a str, &'a str)>,
    ) -> bool {
        if self.share_ppm >= Self::WHOLE {
            return true;
        }
        let mut bytes = KeyBytes::from_slice(&[1]);
        push_text(&mut bytes, domain);
        for (key, value) in entries {
            push_text(&mut bytes, key);
            push_text(&mut bytes, value);
        }
        self.has(&bytes)
    }

    fn has(&self, bytes: &[u8]) -> bool {
        let hash = self.key.hash(bytes) & u128::from(u64::MAX);
        (hash * u128::from(Self::WHOLE)) >> 64 < self.share_ppm.into()
    }
}

/// Appends a text in a way that no other texts have: 1, its length and its bytes.
fn push_text(bytes: &mut KeyBytes, text: &str) {
    bytes.push(1);
    bytes.extend_from_slice(&(text.len() as u64).to_le_bytes());
    bytes.extend_from_slice(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn has(sample: &KeySample, user: &str, plan: Option<&str>) -> bool {
        sample.has_fields(|part| match part {
            Part::UserId => Some(user),
            _ => plan,
        })
    }

    #[test]
    fn a_sample_has_its_share_of_the_keys() {
        let sample = |share_ppm| KeySample::new(share_ppm, [Part::UserId], [7; 16]);
        let users: Vec<String> = (0..10_000).map(|number| format!("user-{number}")).collect();
        let tenth: Vec<_> = users.iter().filter(|user| has(&sample(100_000), user, None)).collect();
        assert!((800..1_200).contains(&tenth.len()), "{}", tenth.len());
        assert!(tenth.iter().all(|user| has(&sample(200_000), user, None)), "a sample grows");
        assert!(users.iter().all(|user| has(&sample(KeySample::WHOLE), user, None)));
        assert!(!users.iter().any(|user| has(&sample(0), user, None)));
        let other = KeySample::new(100_000, [Part::UserId], [8; 16]);
        assert!(tenth.iter().any(|user| !has(&other, user, None)), "another key, other keys");
    }

    #[test]
    fn the_key_has_the_parts_of_the_sample_alone() {
        let plan = Part::Attribute("plan".to_owned());
        let users = KeySample::new(500_000, [Part::UserId], [1; 16]);
        let both = KeySample::new(500_000, [Part::UserId, plan], [1; 16]);
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
        let sample = KeySample::new(500_000, [], [3; 16]);
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
