//! The entries of the fuzz targets for what Redis has; compiled with `--cfg fuzzing` alone.
//!
//! No public item reaches the parser without a server, and with a fake server nearly all of a run would
//! be spent on sockets.

use std::sync::Arc;

use deadpool_redis::redis::Value;

use super::codec::call::ScriptCall;
use super::codec::keys::{HashTag, KeyFormat};
use super::codec::request::{ScriptRequest, ServerTime};
use super::node::ServerClock;
use super::overrides::{Cursor, records};
use crate::algorithm::{Algorithm, Cost, Limit};
use crate::clock::{Micros, SystemClock, Timestamp};
use crate::control::KeyOverrides;
use crate::idempotency::{CallId, IdempotencyRecord};
use crate::observer::NoObserver;
use crate::operation::{Action, Shard, StoreHit, StoreRequest};
use crate::plan::Plan;
use crate::rules::spec::RulesSpec;
use crate::rules::{Coupling, Grant, Request, Rule};
use crate::store::StoreError;

/// A call of four requests: one hit by itself, two hits together, a report, and a hit with a request
/// id.
#[derive(Debug)]
pub struct FuzzCall(ScriptCall);

impl FuzzCall {
    /// Builds the call. Its nonce is `n`.
    ///
    /// # Panics
    ///
    /// Never: the rule and its limit are valid.
    #[expect(clippy::new_without_default, reason = "for one caller")]
    pub fn new() -> Self {
        let rule = Rule::gcra("rule").limit(5).per(Micros::from_secs(60));
        let rules = RulesSpec { rules: vec![rule], ..RulesSpec::default() };
        let rules = rules.build().expect("valid rules");
        let request = Request::user("alice").build().expect("a valid request");
        let key = &Plan::for_request(&rules, &request).hits[0].key;
        let limit = Limit::new(5, Micros::from_secs(60)).expect("a valid limit");
        let grant = &Grant::Limited(limit);
        let hit = |algorithm, action| StoreHit::new(key, algorithm, grant, action);
        let take = hit(Algorithm::Gcra, Action::Take(Cost::new(1)));
        let report = hit(Algorithm::TokenBucket, Action::Report(Cost::new(3)));
        let clock = ServerClock::new(SystemClock::new(), Arc::new(NoObserver));
        let estimate = Timestamp::from_micros(1_700_000_000_000_000);
        let format = KeyFormat::new(Default::default(), HashTag::None);
        let script_request = |hits: &[StoreHit<'_>], once| {
            let (coupling, shard) = (Coupling::AllOrNothing, Shard::default());
            let request = StoreRequest { hits, coupling, shard, once, reservation: None };
            {
                let form = ScriptForm { script: ScriptId::needed(request), by_text: false };
                ScriptRequest::new(&format, request, form, ServerTime { estimate, clock: &clock })
            }
        };
        let with_id = Request::user("alice").request_id("x").build().expect("a valid request");
        let once = IdempotencyRecord::for_request(
            &with_id,
            Operation::Check,
            Micros::from_secs(60),
            CallId(1),
        );
        let requests = vec![
            script_request(&[take], None),
            script_request(&[take, take], None),
            script_request(&[report], None),
            script_request(&[take], once.as_ref()),
        ];
        Self(ScriptCall { nonce: "n".to_owned(), requests })
    }

    /// The number of requests.
    pub fn len(&self) -> usize {
        self.0.requests.len()
    }

    /// Parses a reply to this call and returns the number of results.
    ///
    /// # Errors
    ///
    /// [`StoreError::Garbled`] if it is not a reply to this call.
    pub fn parse(&self, reply: &[u8]) -> Result<usize, StoreError> {
        Ok(self.0.parse(&Value::BulkString(reply.to_vec()))?.len())
    }
}

/// Returns the overrides in the fields of a hash, at the epoch.
pub fn overrides_of(id: &str, fields: &[(Vec<u8>, Vec<u8>)]) -> Vec<KeyOverrides> {
    records("", id, fields, Timestamp::default()).collect()
}

/// Returns `true` if the text is a cursor of the list of overrides.
pub fn is_cursor(text: &str) -> bool {
    Cursor::parse(text).is_some()
}

/// Returns the keys of a message that names changed ones; `None` if it is malformed.
pub fn forgotten_keys(message: &[u8]) -> Option<Vec<&[u8]>> {
    crate::limiter::keys_of(message)
}
