//! Random histories of requests with `headroom` and `at_least` on Redis with a deny cache, beside memory, which has
//! none: a remembered denial answers no request that the store would allow.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;
use rlaas::clock::{Clock, Deadline, ManualClock, Micros, Timestamp};
use rlaas::rules::spec::RuleSpec;
use rlaas::rules::{Request, Rule, RuleSet};
use rlaas::store::{RedisSettings, RedisStore, Servers, Store};
use rlaas_limiter::{DenyCache, DenyCacheSettings, Limiter};
use rlaas_telemetry::metrics::Metrics;
use rlaas_testkit::redis::RedisServer;
use rlaas_testkit::service::{Service, T0};

#[derive(Clone, Debug)]
pub(super) struct RememberedCase {
    algorithm: &'static str,
    limit: u64,
    headroom_percent: u32,
    requests: Vec<AskedAgain>,
}

/// A request, and the time since the one before, in microseconds.
#[derive(Clone, Copy, Debug)]
struct AskedAgain {
    after: u64,
    cost: u32,
    at_least: u32,
    is_batch: bool,
}

pub(super) fn case_of_remembered() -> impl Strategy<Value = RememberedCase> {
    let algorithms = vec![
        "fixed-window",
        "sliding-window-log",
        "sliding-window-counter",
        "token-bucket",
        "leaky-bucket",
        "gcra",
    ];
    let after = prop_oneof![3 => Just(0_u64), 3 => 0..=200_000_u64, 1 => 0..=3_000_000_u64];
    let asked = (after, 1..=6_u32, 0..=3_u32, any::<bool>());
    let asked = asked.prop_map(|(after, cost, at_least, is_batch)| AskedAgain {
        after,
        cost,
        at_least: at_least.min(cost),
        is_batch,
    });
    let requests = prop::collection::vec(asked, 10..=60);
    let all = (prop::sample::select(algorithms), 2..=20_u64, 1..=100_u32, requests);
    all.prop_map(|(algorithm, limit, headroom_percent, requests)| RememberedCase {
        algorithm,
        limit,
        headroom_percent,
        requests,
    })
}

fn rules(case: &RememberedCase) -> RuleSet {
    let RememberedCase { algorithm, limit, headroom_percent, .. } = case;
    let text = format!(
        "{{name: a, algorithm: {algorithm}, limit: {limit}, window: 5s, overrides: [{{match: {{attributes: \
         {{tier: batch}}}}, headroom: {headroom_percent}%}}]}}"
    );
    let spec: RuleSpec = serde_saphyr::from_str(&text).expect("a specification");
    let default: Rule = spec.clone().build().expect("a rule");
    let rule = spec.build().expect("a rule");
    RuleSet::new(Rule { name: Rule::DEFAULT.into(), ..default }, vec![rule])
}

/// Runs a case. Returns how many denials were remembered.
pub(super) async fn run(
    case: RememberedCase,
    server: &Arc<RedisServer>,
) -> Result<u64, TestCaseError> {
    server.query::<()>(&["FLUSHALL"]);
    let url = server.url().parse().map(Box::new).expect("a valid url");
    let settings = RedisSettings {
        timeout: Duration::from_secs(5),
        ..RedisSettings::new(Servers::Standalone(url))
    };
    let (metrics, clock) = (Arc::new(Metrics::new()), ManualClock::new(T0));
    let store = RedisStore::new(&settings, metrics.clone()).expect("valid settings");
    let settings = DenyCacheSettings { max_age: Duration::from_mins(1), max_keys: 1_000 };
    let cache = DenyCache::new(settings, Clock::Manual(clock.clone()));
    let store = Store::Redis(Arc::new(store));
    let cached = Limiter::with_deny_cache(rules(&case), store, cache, metrics.clone());
    let running = cached.clone();
    let running = tokio::spawn(async move { running.run().await });
    let plain = Service::on_memory(rules(&case));
    let mut now = T0.as_micros();
    for asked in &case.requests {
        now += asked.after;
        let time = Timestamp::from_micros(now);
        clock.set(time);
        server.set_clock(time);
        plain.set_clock(time);
        let answered = compare(&cached, &plain, *asked).await;
        if answered.is_err() {
            running.abort();
            return answered.map(|()| 0);
        }
    }
    running.abort();
    Ok(metrics.deny_cache_hits.get())
}

async fn compare(cached: &Limiter, plain: &Service, asked: AskedAgain) -> TestCaseResult {
    let AskedAgain { cost, at_least, is_batch, .. } = asked;
    let tier: &[(&str, &str)] = if is_batch { &[("tier", "batch")] } else { &[] };
    let request = Request::user("alice").cost(cost).attributes(tier).build();
    let request = request.and_then(|all| all.with_at_least(at_least.into())).expect("a request");
    let by_cache = cached.check(&request, Deadline::NEVER).await.expect("a verdict");
    let by_store = plain.limiter.check(&request, Deadline::NEVER).await.expect("a verdict");
    let told = |verdict: &rlaas_limiter::Verdict| (verdict.is_allowed(), verdict.taken);
    prop_assert_eq!(told(&by_cache), told(&by_store), "{:?}", asked);
    let wait = |verdict: &rlaas_limiter::Verdict| match verdict.deciding().decision.outcome {
        rlaas::algorithm::Outcome::Denied { retry_after } => retry_after,
        _ => Micros::ZERO,
    };
    // Others may have taken more since.
    prop_assert!(wait(&by_cache) <= wait(&by_store), "{:?}", asked);
    Ok(())
}
