//! Request ids on both stores and a model: random users, ids, costs and times.

use std::collections::HashMap;
use std::sync::Arc;

use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;
use rlaas::algorithm::{Cost, Decision};
use rlaas::clock::{Deadline, Micros, Timestamp};
use rlaas::rules::Request;
use rlaas::store::{Action, MemorySettings};
use rlaas_limiter::CheckError;
use rlaas_limiter::idempotency::{MAX_REPLAYS, RequestIdError};
use rlaas_testkit::redis::RedisServer;
use rlaas_testkit::service::{Service, T0};

use super::cases::{Shape, shape};
use super::model::Model;

/// A rule, the time to live of records, and requests.
#[derive(Clone, Debug)]
pub(super) struct IdCase {
    rule: Shape,
    ttl: Micros,
    requests: Vec<IdRequest>,
}

#[derive(Clone, Copy, Debug)]
struct IdRequest {
    /// Microseconds since the request before.
    advance: u64,
    user: u8,
    /// The request id, if there is one.
    id: Option<u8>,
    cost: u32,
    dry_run: bool,
}

pub(super) fn case_of_ids() -> impl Strategy<Value = IdCase> {
    let ttl = prop_oneof![1..=60_000_u64, Just(60_000)].prop_map(Micros::from_millis);
    let advance = prop_oneof![
        4 => Just(0_u64),
        4 => 0..=50_000_u64,
        1 => 0..=30_000_000_u64,
        1 => Just(60_000_000),
    ];
    let id = prop::option::weighted(0.8, 0..3_u8);
    let request = (advance, 0..2_u8, id, 0..=2_u32, prop::bool::weighted(0.1));
    let request = request.prop_map(|(advance, user, id, cost, dry_run)| IdRequest {
        advance,
        user,
        id,
        cost,
        dry_run,
    });
    (shape(), ttl, prop::collection::vec(request, 1..=120))
        .prop_map(|(rule, ttl, requests)| IdCase { rule, ttl, requests })
}

/// The records by the definition.
struct IdModel {
    states: Model,
    ttl: Micros,
    records: HashMap<(u8, u8), Record>,
}

struct Record {
    cost: u32,
    decision: Decision,
    at: Timestamp,
    replays: u32,
}

type IdResult = Result<(Decision, bool), RequestIdError>;

impl IdModel {
    fn decide(&mut self, request: IdRequest, now: Timestamp) -> IdResult {
        let IdRequest { user, id, cost, dry_run, .. } = request;
        let units = Cost::new(cost);
        let action = if dry_run { Action::Peek(units) } else { Action::Take(units) };
        let name = id.filter(|_| !dry_run && cost > 0).map(|id| (user, id));
        if let Some(record) = name.and_then(|name| self.records.get_mut(&name))
            && now < record.at + self.ttl
        {
            if record.cost != cost {
                return Err(RequestIdError::OtherRequest);
            }
            if record.replays == MAX_REPLAYS {
                return Err(RequestIdError::TooManyReplays);
            }
            record.replays += 1;
            let reset_after = record.decision.reset_after - now.since(record.at);
            return Ok((Decision { reset_after, ..record.decision }, true));
        }
        let decision = self.states.act(user, now, action);
        if let Some(name) = name.filter(|_| decision.is_allowed()) {
            self.records.insert(name, Record { cost, decision, at: now, replays: 0 });
        }
        Ok((decision, false))
    }
}

impl IdCase {
    /// Sends the requests to both stores and the model.
    pub(super) async fn run(&self, server: &Arc<RedisServer>) -> TestCaseResult {
        server.query::<()>(&["FLUSHALL"]);
        let rules = self.rule.rules();
        let one_shard = MemorySettings { max_keys: 1_000 };
        let memory = Service::on_bounded_memory(rules.clone(), one_shard);
        let redis = Service::on_redis(rules, Arc::clone(server));
        let states = Model::new(self.rule.algorithm(), &self.rule.limit());
        let mut model = IdModel { states, ttl: self.ttl, records: HashMap::new() };
        let mut now = T0;
        for service in [&memory, &redis] {
            service.limiter.set_idempotency_ttl(self.ttl);
        }
        for request in &self.requests {
            now = now + Micros::from_micros(request.advance);
            let expected = model.decide(*request, now);
            for (name, service) in [("memory", &memory), ("Redis", &redis)] {
                service.set_clock(now);
                let answer = answer(service, *request).await;
                prop_assert_eq!(&answer, &expected, "{}, {:?} at {:?}", name, request, now);
            }
        }
        Ok(())
    }

    pub(super) fn len(&self) -> usize {
        self.requests.len()
    }
}

async fn answer(service: &Service, request: IdRequest) -> IdResult {
    let IdRequest { user, id, cost, dry_run, .. } = request;
    let (user, id) = (user.to_string(), id.map(|id| id.to_string()));
    let built = Request::user(&user).cost(cost).request_id(id.as_deref().unwrap_or_default());
    let built = if dry_run { built.dry_run() } else { built };
    let built = built.build().expect("a valid request");
    match service.limiter.check(&built, Deadline::NEVER).await {
        Ok(verdict) => Ok((verdict.deciding().decision, verdict.replayed)),
        Err(CheckError::RequestId(error)) => Err(error),
        Err(error) => panic!("{error}"),
    }
}
