//! Hashes of requests and hits, over length-prefixed fields: the same on every instance, or quick and
//! of this process alone. No two requests with the same hash can be found.

use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;

use sha2::{Digest, Sha256};

use super::Operation;
use crate::operation::StoreHit;
use crate::rules::{Attributes, Request};

/// Returns the fields of an operation, a project, empty for none, a user and a request id.
pub(super) fn of_id(
    operation: Operation,
    project: &str,
    user_id: &str,
    request_id: &str,
) -> HashedFields {
    let mut fields = HashedFields::new(match operation {
        Operation::Check => "id",
        Operation::Report => "id of a report",
        Operation::Reserve => "id of a reservation",
        Operation::Commit => "id of a settlement",
    });
    fields.push(user_id.as_bytes());
    fields.push(request_id.as_bytes());
    // Without a project the hash is that of earlier releases.
    if !project.is_empty() {
        fields.push(project.as_bytes());
    }
    fields
}

/// Returns all fields of a request. With the request id, which is hard to guess, nobody
/// who reads a record finds out the others by trying.
pub(super) fn of_request(request: &Request<'_>) -> HashedFields {
    let mut fields = HashedFields::new("request");
    fields.push(request.user_id().as_bytes());
    fields.push(request.request_id().unwrap_or_default().as_bytes());
    fields.push(request.resource().as_bytes());
    fields.push(&request.cost().units().to_le_bytes());
    let attributes = request.attributes().iter().filter(|(name, _)| !Attributes::is_of_key(name));
    let mut attributes: Vec<(&str, &str)> = attributes.collect();
    // Stable: of several with the same name the first counts.
    attributes.sort_by_key(|(name, _)| *name);
    attributes.dedup_by_key(|(name, _)| *name);
    for (name, value) in attributes {
        fields.push(name.as_bytes());
        fields.push(value.as_bytes());
    }
    // Without costs the hash is that of earlier releases.
    let mut costs: Vec<(&str, u64)> = request.costs().iter().collect();
    costs.sort_by_key(|(rule, _)| *rule);
    costs.dedup_by_key(|(rule, _)| *rule);
    if !costs.is_empty() {
        // An odd number of fields: attributes have an even one.
        fields.push(b"costs");
    }
    for (rule, units) in costs {
        fields.push(rule.as_bytes());
        fields.push(&units.to_le_bytes());
    }
    if let Some(units) = request.at_least() {
        // No name, which is not empty, and no units are both last.
        fields.push(b"");
        fields.push(&units.get().to_le_bytes());
    }
    fields
}

/// Returns what a remembered reply depends on: the keys and algorithms of the hits, and
/// whether overrides may decide.
pub(super) fn of_hits(hits: &[StoreHit<'_>]) -> HashedFields {
    let mut fields = HashedFields::new("hits");
    for hit in hits {
        fields.push(hit.key.as_bytes());
        fields.push(hit.algorithm.lua_name().as_bytes());
        fields.push(&[hit.overridable.into()]);
    }
    fields
}

/// The fields of a hash, each after its length.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct HashedFields(Vec<u8>);

impl HashedFields {
    /// Starts fields whose hash differs from those of other kinds.
    fn new(kind: &str) -> Self {
        let mut fields = Self(Vec::with_capacity(128));
        fields.push(kind.as_bytes());
        fields
    }

    fn push(&mut self, field: &[u8]) {
        self.0.extend_from_slice(&(field.len() as u64).to_le_bytes());
        self.0.extend_from_slice(field);
    }

    /// Returns 128 bits of SHA-256, the same on every instance.
    pub(super) fn shared_hash(&self) -> u128 {
        let hash: [u8; 32] = Sha256::digest(&self.0).into();
        let (first, _) = hash.split_first_chunk::<16>().expect("32 bytes");
        u128::from_be_bytes(*first)
    }

    /// Returns a hash that has a meaning in this process alone. It is quicker, and as safe while nobody
    /// else knows its random keys.
    pub(super) fn local_hash(&self) -> u128 {
        static KEYS: LazyLock<[RandomState; 2]> =
            LazyLock::new(|| [RandomState::new(), RandomState::new()]);
        let [high, low] = KEYS.each_ref().map(|keys| u128::from(keys.hash_one(&*self.0)));
        high << 64 | low
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_do_not_run_into_each_other() {
        let of = |project, user, id| of_id(Operation::Check, project, user, id);
        assert_ne!(of("", "ab", "c"), of("", "a", "bc"));
        assert_ne!(of("", "", "ab"), of("", "ab", ""));
        assert_ne!(of("", "a", "b"), of("p", "a", "b"));
        assert_ne!(of("p", "a", "b"), of("q", "a", "b"));
        assert_ne!(of("p", "a", "b"), of_id(Operation::Report, "p", "a", "b"));
    }

    #[test]
    fn hashes_are_those_of_the_fields() {
        let fields = |id| of_id(Operation::Check, "", "alice", id);
        // Records in Redis are found by it.
        let sha256 = 0x1a27_282e_52f3_ea37_d837_c8c7_675f_093e;
        assert_eq!(fields("1").shared_hash(), sha256);
        for hash in [HashedFields::shared_hash, HashedFields::local_hash] {
            assert_eq!(hash(&fields("1")), hash(&fields("1")));
            assert_ne!(hash(&fields("1")), hash(&fields("2")));
        }
        let local = fields("1").local_hash();
        assert_ne!(local >> 64, local & u128::from(u64::MAX), "two keys");
    }

    #[test]
    fn every_field_counts_and_the_order_of_attributes_does_not() {
        let attributes = [("plan", "pro"), ("zone", "eu")];
        let request = |attributes| Request::user("alice").resource("/r").attributes(attributes);
        let build = |builder: crate::rules::RequestBuilder<'_>| {
            of_request(&builder.build().expect("a valid request"))
        };
        let all = build(request(&attributes));
        let costs = |costs: &[(&str, u64); 2]| {
            let request = request(&attributes).build().and_then(|one| one.with_costs(costs));
            of_request(&request.expect("a valid request"))
        };
        assert_eq!(costs(&[("a", 1), ("b", 2)]), costs(&[("b", 2), ("a", 1)]));
        assert_eq!(build(request(&[("zone", "eu"), ("plan", "pro")])), all);
        let at_least = request(&attributes).build().and_then(|request| request.with_at_least(1));
        let at_least = of_request(&at_least.expect("a valid request"));
        let others = [
            build(request(&attributes).request_id("x")),
            build(request(&attributes).cost(2)),
            build(request(&attributes).resource("/s")),
            costs(&[("pro", 1), ("a", 1)]),
            costs(&[("pro", 2), ("a", 1)]),
            build(request(&[("plan", "zone"), ("pro", "eu")])),
            build(Request::user("bob").resource("/r").attributes(&attributes)),
            build(Request::user("alice").resource("/r")),
            at_least,
        ];
        for (position, one) in others.iter().enumerate() {
            assert_ne!(*one, all, "{position}");
            assert!(!others[position + 1..].contains(one), "{position}");
        }
    }
}
