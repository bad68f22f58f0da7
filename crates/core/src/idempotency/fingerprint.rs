//! Hashes of requests and hits: 128 bits of SHA-256 over length-prefixed fields, the same on every
//! instance. No two requests with the same hash can be found.

use sha2::{Digest, Sha256};

use super::Operation;
use crate::operation::StoreHit;
use crate::rules::Request;

/// Returns the hash of an operation, a project, empty for none, a user and a request id.
pub(super) fn of_id(operation: Operation, project: &str, user_id: &str, request_id: &str) -> u128 {
    let mut hash = FieldHash::new(match operation {
        Operation::Check => "id",
        Operation::Report => "id of a report",
        Operation::Reserve => "id of a reservation",
        Operation::Commit => "id of a settlement",
    });
    hash.push(user_id.as_bytes());
    hash.push(request_id.as_bytes());
    // Without a project the hash is that of earlier releases.
    if !project.is_empty() {
        hash.push(project.as_bytes());
    }
    hash.finish()
}

/// Returns the hash of all fields of a request. With the request id, which is hard to guess, nobody
/// who reads a record finds out the others by trying.
pub(super) fn of_request(request: &Request<'_>) -> u128 {
    let mut hash = FieldHash::new("request");
    hash.push(request.user_id().as_bytes());
    hash.push(request.request_id().unwrap_or_default().as_bytes());
    hash.push(request.resource().as_bytes());
    hash.push(&request.cost().units().to_le_bytes());
    let mut attributes: Vec<(&str, &str)> = request.attributes().iter().collect();
    // Stable: of several with the same name the first counts.
    attributes.sort_by_key(|(name, _)| *name);
    attributes.dedup_by_key(|(name, _)| *name);
    for (name, value) in attributes {
        hash.push(name.as_bytes());
        hash.push(value.as_bytes());
    }
    // Without costs the hash is that of earlier releases.
    let mut costs: Vec<(&str, u64)> = request.costs().iter().collect();
    costs.sort_by_key(|(rule, _)| *rule);
    costs.dedup_by_key(|(rule, _)| *rule);
    if !costs.is_empty() {
        // An odd number of fields: attributes have an even one.
        hash.push(b"costs");
    }
    for (rule, units) in costs {
        hash.push(rule.as_bytes());
        hash.push(&units.to_le_bytes());
    }
    hash.finish()
}

/// Returns the hash of what a remembered reply depends on: the keys and algorithms of the hits, and
/// whether overrides may decide.
pub(super) fn of_hits(hits: &[StoreHit<'_>]) -> u128 {
    let mut hash = FieldHash::new("hits");
    for hit in hits {
        hash.push(hit.key.as_bytes());
        hash.push(hit.algorithm.lua_name().as_bytes());
        hash.push(&[hit.overridable.into()]);
    }
    hash.finish()
}

struct FieldHash(Sha256);

impl FieldHash {
    /// Starts a hash that differs from those of other kinds.
    fn new(kind: &str) -> Self {
        let mut hash = Self(Sha256::new());
        hash.push(kind.as_bytes());
        hash
    }

    fn push(&mut self, field: &[u8]) {
        self.0.update((field.len() as u64).to_le_bytes());
        self.0.update(field);
    }

    fn finish(self) -> u128 {
        let hash: [u8; 32] = self.0.finalize().into();
        let (first, _) = hash.split_first_chunk::<16>().expect("32 bytes");
        u128::from_be_bytes(*first)
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
        let others = [
            build(request(&attributes).request_id("x")),
            build(request(&attributes).cost(2)),
            build(request(&attributes).resource("/s")),
            costs(&[("pro", 1), ("a", 1)]),
            costs(&[("pro", 2), ("a", 1)]),
            build(request(&[("plan", "zone"), ("pro", "eu")])),
            build(Request::user("bob").resource("/r").attributes(&attributes)),
            build(Request::user("alice").resource("/r")),
        ];
        for (position, one) in others.iter().enumerate() {
            assert_ne!(*one, all, "{position}");
            assert!(!others[position + 1..].contains(one), "{position}");
        }
    }
}
