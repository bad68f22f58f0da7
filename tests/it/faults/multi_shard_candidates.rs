//! Candidates of rules whose states are on several masters of a cluster: what a candidate took before a
//! later shard refused the request is refunded.

use std::sync::{Arc, Mutex};

use rlaas::algorithm::{Algorithm, Limit};
use rlaas::clock::{Deadline, Micros};
use rlaas::observer::{
    CandidateOutcome, Decided, NoObserver, Observer, RequestEvent, RuleObserver,
};
use rlaas::rules::{Candidate, Part, Request, Rule, RuleInfo};
use rlaas_testkit::eventually;

use super::load::SOON;
use super::multi_shard_library::{Fixture, attribute, check, for_tenants, rule, rule_set, user};

/// The outcomes of candidates, by the first letter of their rule, and failed refunds.
#[derive(Debug, Default)]
struct ShardedOutcomes {
    candidates: Mutex<Vec<(char, CandidateOutcome)>>,
    failed_refunds: Mutex<usize>,
}

#[derive(Debug)]
struct ShardedRule {
    name: char,
    outcomes: Arc<ShardedOutcomes>,
}

#[derive(Debug, Default)]
struct ShardedObserver(Arc<ShardedOutcomes>);

impl Observer for ShardedObserver {
    fn rule(&self, rule: RuleInfo<'_>) -> Arc<dyn RuleObserver> {
        match rule.name.chars().next() {
            Some(name) => Arc::new(ShardedRule { name, outcomes: Arc::clone(&self.0) }),
            None => Arc::new(NoObserver),
        }
    }

    fn request(&self, event: RequestEvent<'_>) {
        if matches!(event, RequestEvent::RefundFailed) {
            *self.0.failed_refunds.lock().expect("no panic") += 1;
        }
    }
}

impl RuleObserver for ShardedRule {
    fn decided(&self, _decided: Decided<'_>) {}

    fn candidate_decided(&self, number: usize, outcome: CandidateOutcome, _units: u64) {
        // 0 is the rule itself.
        if number == 0 {
            return;
        }
        self.outcomes.candidates.lock().expect("no panic").push((self.name, outcome));
    }
}

impl ShardedOutcomes {
    /// Returns the outcomes since the last call, in the order of the rules.
    fn take(&self) -> Vec<CandidateOutcome> {
        let mut taken = std::mem::take(&mut *self.candidates.lock().expect("no panic"));
        taken.sort_by_key(|(name, _)| *name);
        taken.into_iter().map(|(_, outcome)| outcome).collect()
    }
}

/// Returns a rule with a candidate. Its window outlasts the test.
fn with_candidate(name: &str, by: Part, algorithm: Algorithm, [live, other]: [u64; 2]) -> Rule {
    let limit = Limit::new(other, Micros::from_secs(366 * 86_400)).expect("a valid limit");
    Rule { candidates: vec![Candidate { algorithm, limit }], ..rule(name, by, algorithm, live) }
}

#[tokio::test]
async fn candidate_takes_nothing_of_requests_that_another_shard_refuses() {
    use CandidateOutcome::{Allowed, Denied, OtherRule};
    let observer = Arc::new(ShardedObserver::default());
    let outcomes = Arc::clone(&observer.0);
    let fixture = Fixture::start(rule_set(Vec::new()), 4096, observer).await;
    let Fixture { user: alice, team: crew, limiter, .. } = &fixture;
    for algorithm in Algorithm::RATES {
        let name = algorithm.name();
        limiter.replace_rules(rule_set(vec![
            with_candidate("a-user", user(), *algorithm, [100, 5]),
            with_candidate("b-tenant", attribute("tenant"), *algorithm, [3, 6]),
            with_candidate("c-team", attribute("team"), *algorithm, [100, 5]),
        ]));
        let mut decided = Vec::new();
        for _ in 0..7 {
            let verdict = fixture.check("/", 1).await.expect("a verdict");
            decided.push((verdict.is_allowed(), outcomes.take()));
        }
        let all = (true, vec![Allowed; 3]);
        // The rule of the tenant refuses. Its candidate counts as if it stood in its place.
        let refused = (false, vec![OtherRule, Allowed, OtherRule]);
        let last = (false, vec![OtherRule, Denied, OtherRule]);
        let expected = [vec![all; 3], vec![refused; 3], vec![last]].concat();
        assert_eq!(decided, expected, "{name}");
        // Another tenant, on the master of the user.
        let mut decided = Vec::new();
        for _ in 0..3 {
            let ids = [alice, alice, crew].map(String::as_str);
            let verdict = check(limiter, ids, "/", 1).await.expect("a verdict");
            assert!(verdict.is_allowed(), "{name}");
            decided.push(outcomes.take());
        }
        let two_left = [vec![Allowed; 3], vec![Allowed; 3], vec![Denied, Allowed, Denied]];
        assert_eq!(decided, two_left, "{name}");
    }
    assert_eq!(*outcomes.failed_refunds.lock().expect("no panic"), 0);
}

#[tokio::test]
async fn candidate_takes_nothing_of_a_refused_request_whose_caller_leaves() {
    let observer = Arc::new(ShardedObserver::default());
    let outcomes = Arc::clone(&observer.0);
    let algorithm = Algorithm::Gcra;
    let rules = rule_set(vec![
        with_candidate("a-user", user(), algorithm, [5, 1]),
        for_tenants(rule("b-tenant", attribute("tenant"), algorithm, 1)),
    ]);
    let fixture = Fixture::start(rules, 4096, observer).await;
    let ids = [&*fixture.team, &fixture.tenant, &fixture.team];
    assert!(check(&fixture.limiter, ids, "/tenant", 1).await.expect("a verdict").is_allowed());
    let look = async || {
        let request = Request::user(&fixture.user).dry_run().build().expect("a valid request");
        outcomes.take();
        fixture.limiter.check(&request, Deadline::NEVER).await.expect("a verdict");
        outcomes.take()
    };
    assert_eq!(look().await, [CandidateOutcome::Allowed]);
    fixture.pause(true);
    let leaves = fixture.spawn("/tenant");
    let taken = async || look().await == [CandidateOutcome::Denied];
    eventually("the candidate takes", SOON, taken).await;
    leaves.abort();
    assert!(leaves.await.is_err_and(|ended| ended.is_cancelled()));
    fixture.pause(false);
    let refunded = async || look().await == [CandidateOutcome::Allowed];
    eventually("the unit is refunded", SOON, refunded).await;
    assert_eq!(fixture.peek("/").await.expect("a verdict"), [5]);
}
