//! Clients for the tests of programs, without a server: they ask a [`TestService`] in the same program, with all that
//! a client does besides.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use std::time::Duration;
//!
//! use rlaas_client::rlaas_core::rules::Request;
//! use rlaas_client::testing::{TestLimit, TestService};
//!
//! let minute = Duration::from_secs(60);
//! let search = TestLimit { rule: "search".to_owned(), units: 1, window: minute, resource: None };
//! let service = TestService::count([search]);
//! let client = service.client().connect_lazy()?;
//! let request = Request::user("alice").build()?;
//! assert!(client.check(&request).await?.is_allowed());
//! assert!(!client.check(&request).await?.is_allowed());
//! service.advance(minute);
//! assert!(client.check(&request).await?.is_allowed());
//! # Ok(())
//! # }
//! ```

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rlaas_proto::ratelimit::v1::check_response::{Reason, Source};
use rlaas_proto::ratelimit::v1::{Algorithm, CheckRequest, CheckResponse, RuleDecision};
use tonic::Status;

use crate::client::{Client, ClientBuilder};
use crate::verdict::to_message;

/// A rule of a test: units of each user in a window, which begins with a first request.
#[derive(Clone, Debug)]
pub struct TestLimit {
    /// Name of the rule.
    pub rule: String,
    /// Units in a window.
    pub units: u32,
    /// Length of the window.
    pub window: Duration,
    /// Resource that is limited; without one all are, together.
    pub resource: Option<String>,
}

/// Answers clients of tests. It allows what no limit matches, and takes the cost of reservations at once. Its time stands
/// still until [`Self::advance`] moves it.
#[derive(Clone, Debug, Default)]
pub struct TestService(Arc<Mutex<Counts>>);

#[derive(Debug, Default)]
struct Counts {
    limits: Vec<TestLimit>,
    is_away: bool,
    now: Duration,
    windows: HashMap<WindowKey, Window>,
    requests: Vec<CheckRequest>,
}

/// Index of the limit, and the user.
type WindowKey = (usize, String);

#[derive(Clone, Copy, Debug)]
struct Window {
    since: Duration,
    used: i64,
}

impl TestService {
    /// Returns a service that allows all requests.
    pub fn allow() -> Self {
        Self::default()
    }

    /// Returns a service that counts in memory.
    pub fn count(limits: impl IntoIterator<Item = TestLimit>) -> Self {
        let service = Self::default();
        service.counts().limits.extend(limits);
        service
    }

    /// Returns a service that refuses all requests by a rule.
    pub fn refuse(rule: &str, retry_after: Duration) -> Self {
        let (rule, window) = (rule.to_owned(), retry_after);
        Self::count([TestLimit { rule, units: 0, window, resource: None }])
    }

    /// Returns a service that does not answer.
    pub fn away() -> Self {
        let service = Self::default();
        service.set_away(true);
        service
    }

    /// Starts building a client that asks the service. It caches no refusals unless `max_age` is set.
    pub fn client(&self) -> ClientBuilder {
        Client::builder("unix:/nowhere").max_age(Duration::ZERO).service(self.clone())
    }

    /// Sets whether the service is away.
    pub fn set_away(&self, is_away: bool) {
        self.counts().is_away = is_away;
    }

    /// Moves the time.
    pub fn advance(&self, time: Duration) {
        self.counts().now += time;
    }

    /// Returns the requests that the service was asked.
    pub fn requests(&self) -> Vec<CheckRequest> {
        self.counts().requests.clone()
    }

    pub(crate) fn check(&self, request: CheckRequest) -> Result<CheckResponse, Status> {
        let mut counts = self.counts();
        if counts.is_away {
            return Err(Status::unavailable("the service of the test is away"));
        }
        Ok(counts.decide(request))
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Counts {
    /// Takes the units of all limits that match, or of none.
    fn decide(&mut self, request: CheckRequest) -> CheckResponse {
        let mut cost = units(request.cost.unwrap_or(1));
        let mut found = Vec::new();
        for (index, limit) in self.limits.iter().enumerate() {
            if limit.resource.as_ref().is_some_and(|resource| *resource != request.resource) {
                continue;
            }
            let key = (index, request.user_id.clone());
            let fresh = Window { since: self.now, used: 0 };
            let window = self.windows.entry(key.clone()).or_insert(fresh);
            if self.now.saturating_sub(window.since) >= limit.window {
                *window = fresh;
            }
            let remaining = i64::from(limit.units) - window.used;
            let wait = (window.since + limit.window).saturating_sub(self.now);
            if request.at_least > 0 {
                cost = cost.min(remaining).max(units(request.at_least));
            }
            found.push((key, limit, remaining, wait));
        }
        let mut decisions: Vec<_> = found
            .iter()
            .map(|(_, limit, remaining, wait)| limit.decision(cost, *remaining, *wait))
            .collect();
        if !request.dry_run && decisions.iter().all(|decision| decision.allowed) {
            for ((key, ..), decision) in found.into_iter().zip(&mut decisions) {
                decision.remaining -= cost;
                self.windows.entry(key).and_modify(|window| window.used += cost);
            }
        }
        let has_at_least = request.at_least > 0;
        self.requests.push(request);
        let response = response(decisions);
        let taken = if response.allowed { cost.cast_unsigned() } else { 0 };
        CheckResponse { taken: has_at_least.then_some(taken), ..response }
    }
}

impl TestLimit {
    fn decision(&self, cost: i64, remaining: i64, reset_after: Duration) -> RuleDecision {
        let allowed = cost <= remaining;
        let reset_after = Some(to_message(reset_after.into()));
        RuleDecision {
            rule: self.rule.clone(),
            algorithm: Algorithm::FixedWindow.into(),
            allowed,
            limit: self.units.into(),
            remaining,
            retry_after: if allowed { None } else { reset_after },
            reset_after,
            reason: if allowed { Reason::WithinLimit } else { Reason::OverLimit }.into(),
            window: Some(to_message(self.window.into())),
            ..RuleDecision::default()
        }
    }
}

fn units(units: u64) -> i64 {
    i64::try_from(units).unwrap_or(i64::MAX)
}

/// Returns the response of the first limit that refuses, or else of the first.
fn response(decisions: Vec<RuleDecision>) -> CheckResponse {
    let deciding = decisions.iter().find(|decision| !decision.allowed).or(decisions.first());
    let Some(deciding) = deciding.cloned() else {
        return CheckResponse {
            allowed: true,
            reason: Reason::NoRule.into(),
            ..CheckResponse::default()
        };
    };
    CheckResponse {
        allowed: deciding.allowed,
        rule: deciding.rule,
        algorithm: deciding.algorithm,
        limit: deciding.limit,
        remaining: deciding.remaining,
        retry_after: deciding.retry_after,
        reset_after: deciding.reset_after,
        reason: deciding.reason,
        source: Source::Store.into(),
        decisions,
        ..CheckResponse::default()
    }
}
