//! A simulation decides as a live limiter does to which the same requests come at the same times:
//! request by request, in every field, on memory and on a real Redis whose clock is moved.
//!
//! With `SOAK` there are 10⁶ requests in all, over both stores, both kinds of requests and six
//! algorithms.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::TestCaseError;
use rlaas::algorithm::{Algorithm, Limit};
use rlaas::clock::{Deadline, Micros, Timestamp};
use rlaas::rules::descriptors::{Descriptor, DescriptorRule, DescriptorSpec, Descriptors};
use rlaas::rules::spec::{Field, RateSpec};
use rlaas::rules::{Coupling, Matcher, Mode, Part, Pattern, Rule, RuleSet, TextPattern};
use rlaas::verdict::RuleDecision;
use rlaas_simulation::simulation::{
    SimulatedDecision, SimulatedVerdict, Simulation, SimulationSettings,
};
use rlaas_simulation::{
    RecordedDescriptor, RecordedDescriptors, RecordedFields, RecordedRequest, TimedRequest,
    descriptor_request, with_request,
};
use rlaas_testkit::redis::RedisServer;
use rlaas_testkit::service::{Service, T0};
use tokio::runtime::Builder;

/// Returns how many requests each algorithm and kind of request gets on one store.
fn requests_of_each() -> usize {
    if std::env::var_os("SOAK").is_some() { 500_000_usize.div_ceil(12) } else { 200 }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestKind {
    Native,
    Envoy,
}

/// A limit of 0 is decided without the store, whose time is then an estimate if it is Redis: the
/// time to the end of a fixed window is left out.
fn comparable(mut decided: SimulatedDecision) -> SimulatedDecision {
    if decided.decision.at == Timestamp::EPOCH {
        decided.decision.reset_after = Micros::ZERO;
    }
    decided
}

fn live(decided: &RuleDecision) -> SimulatedDecision {
    comparable(SimulatedDecision::from(decided))
}

/// Random numbers that are the same in each run.
struct TrafficGenerator(u64);

impl TrafficGenerator {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }

    /// Returns one of `count` ids, of which the first ones come often.
    fn id(&mut self, count: u64) -> u64 {
        let bound = self.below(count) + 1;
        self.below(bound)
    }

    /// Returns the time to the next request: often none, now and then a whole window.
    fn step(&mut self) -> Micros {
        Micros::from_micros(match self.below(40) {
            0..20 => 0,
            20..30 => self.below(1_000),
            30..38 => self.below(300_000),
            38 => self.below(3_000_000),
            _ => self.below(12_000_000),
        })
    }

    fn native(&mut self) -> RecordedRequest {
        let cost = [1, 1, 1, 1, 2, 3, 0, 21][usize::try_from(self.below(8)).expect("small")];
        RecordedRequest::Fields(RecordedFields {
            user_id: format!("user-{}", self.id(30)).into(),
            resource: ["/", "/pay", "/quota"][usize::try_from(self.below(3)).expect("small")]
                .into(),
            cost,
            ..RecordedFields::default()
        })
    }

    fn envoy(&mut self, algorithm: Algorithm) -> RecordedRequest {
        let descriptor = |random: &mut Self| {
            let ip = ("ip".into(), format!("10.0.0.{}", random.id(20)).into());
            let path = ("path".into(), format!("/{}", random.below(3)).into());
            let entries: Box<[_]> =
                if random.below(2) == 0 { Box::new([ip]) } else { Box::new([ip, path]) };
            let credits = random.below(20) == 0 && algorithm != Algorithm::SlidingWindowLog;
            let hits = i64::try_from(random.below(4)).expect("small");
            let limit = (random.below(15) == 0).then(|| (random.below(4), 2_000_000));
            RecordedDescriptor { entries, hits: if credits { -hits } else { hits }, limit }
        };
        let count = 1 + self.below(3);
        let descriptors = (0..count).map(|_| descriptor(self)).collect();
        RecordedRequest::Descriptors(RecordedDescriptors { domain: "web".into(), descriptors })
    }
}

fn limit(units: u64, millis: u64) -> Limit {
    Limit::new(units, Micros::from_millis(millis)).expect("a valid limit")
}

fn limit_from_first_use(units: u64, millis: u64) -> Limit {
    let window = limit(units, millis).windows().at_first_use();
    Limit::new(units, window).expect("a valid limit")
}

/// Returns a limit of so many units in so many milliseconds.
type MakeLimit = fn(u64, u64) -> Limit;

/// Rules of which each request matches one to three: enforced, quotas, and in shadow mode.
fn rules(algorithm: Algorithm, limit: MakeLimit, coupling: Coupling) -> RuleSet {
    let rule = |name: &str, limit: Limit, mode: Mode, resource: Option<&str>| {
        let one_of = |text: &str| Pattern::OneOf(vec![TextPattern::Exact(text.to_owned())]);
        let patterns = resource.map(|text| (Part::Resource, one_of(text))).into_iter().collect();
        let matcher = Matcher { patterns };
        Rule { name: name.into(), mode, matcher, ..Rule::new_default(algorithm, limit) }
    };
    let named = vec![
        rule("everybody", limit(20, 10_000), Mode::Enforced, None),
        rule("pay", limit(3, 1_500), Mode::Enforced, Some("/pay")),
        rule("quota-one", limit(2, 1_000), Mode::Quota, Some("/quota")),
        rule("quota-two", limit(9, 7_000), Mode::Quota, Some("/quota")),
        rule("watched", limit(4, 2_000), Mode::Shadow, Some("/")),
    ];
    let below = leaf("path", algorithm, limit(2, 500), Mode::Enforced, coupling);
    let mut ip = leaf("ip", algorithm, limit(12, 4_000), Mode::Enforced, coupling);
    ip.below = vec![below];
    let tree = vec![("web".to_owned(), vec![ip])];
    let default = Rule::new_default(algorithm, limit(1_000, 1_000));
    RuleSet::new(default, named).with_descriptors(Descriptors::new(tree, coupling))
}

fn leaf(
    key: &str,
    algorithm: Algorithm,
    limit: Limit,
    mode: Mode,
    coupling: Coupling,
) -> Descriptor {
    let rate = RateSpec {
        algorithm: Field::Set(algorithm),
        limit: Field::Set(limit.units()),
        window: Field::Set(limit.windows()),
        ..RateSpec::default()
    };
    let spec =
        DescriptorSpec { label: format!("web.{key}"), rate, mode, ..DescriptorSpec::default() };
    let rule: DescriptorRule = spec.build(coupling).expect("a valid rule");
    Descriptor {
        key: key.to_owned(),
        value: None,
        shares: false,
        value_to_metric: false,
        rule: Some(rule),
        below: Vec::new(),
    }
}

/// Decides a request on a live limiter.
async fn decide_live(
    service: &Service,
    request: &RecordedRequest,
) -> (bool, Vec<SimulatedDecision>) {
    let deadline = Deadline::within(Duration::from_secs(10));
    match request {
        RecordedRequest::Fields(fields) => {
            // The request borrows from the closure, so the check starts within it.
            let started = with_request(fields, |request| service.limiter.begin(request, deadline));
            let verdict = match started.expect("a valid request") {
                rlaas_limiter::StartedCheck::Decided(verdict) => verdict,
                rlaas_limiter::StartedCheck::Pending(pending) => pending.finish().await,
            };
            let verdict = verdict.expect("a verdict");
            (verdict.is_allowed(), verdict.decisions.iter().map(live).collect())
        }
        RecordedRequest::Descriptors(descriptors) => {
            let request = descriptor_request(descriptors).expect("a valid request");
            let verdict = service.limiter.check_descriptors(&request, deadline).await;
            let verdict = verdict.expect("a verdict");
            let answers = verdict.answers.iter().flatten();
            (verdict.is_allowed(), answers.map(|answer| live(&answer.decided)).collect())
        }
    }
}

fn simulated(verdict: &SimulatedVerdict) -> (bool, Vec<SimulatedDecision>) {
    (!verdict.is_refused(), verdict.decisions.iter().copied().map(comparable).collect())
}

/// Counts of the requests of one run.
#[derive(Debug, Default)]
struct Compared {
    requests: usize,
    decisions: usize,
    refused: usize,
}

/// Sends the same requests at the same times to a limiter and to a simulation.
async fn compare(
    service: &Service,
    rules: RuleSet,
    kind: RequestKind,
    algorithm: Algorithm,
    requests: usize,
) -> Result<Compared, TestCaseError> {
    let mut random = TrafficGenerator(requests as u64 + algorithm as u64);
    let mut now = T0;
    let mut simulation = Simulation::new(SimulationSettings::new(rules));
    let mut compared = Compared::default();
    for number in 0..requests {
        now = now + random.step();
        let request = match kind {
            RequestKind::Native => random.native(),
            RequestKind::Envoy => random.envoy(algorithm),
        };
        service.set_clock(now);
        let live = decide_live(service, &request).await;
        let timed = TimedRequest { at: now, request, was_refused: false };
        let decided = simulated(&simulation.decide(&timed).candidate);
        if decided != live {
            let request = &timed.request;
            return Err(TestCaseError::fail(format!(
                "{kind:?} {algorithm:?}, request {number} at {now:?}: {request:?}\n\
                 simulated {decided:#?}\nlive {live:#?}"
            )));
        }
        compared.requests += 1;
        compared.decisions += live.1.len();
        compared.refused += usize::from(!live.0);
    }
    let report = simulation.finish();
    let refused = usize::try_from(report.all.refused).expect("few requests");
    assert_eq!(refused, compared.refused, "the report counts what was decided");
    Ok(compared)
}

/// Compares all algorithms and both kinds of requests on one store, and prints what was compared.
fn compare_all(store: &str, start: impl AsyncFn(RuleSet) -> Service) {
    let each = requests_of_each();
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    let mut all = Compared::default();
    let both = &[RequestKind::Native, RequestKind::Envoy][..];
    let rates = Algorithm::RATES.iter().map(|algorithm| (*algorithm, limit as MakeLimit, both));
    // Envoy's files have no windows from the first use.
    let native = (Algorithm::FixedWindow, limit_from_first_use as MakeLimit, &both[..1]);
    for (number, (algorithm, make, kinds)) in rates.chain([native]).enumerate() {
        // Envoy's count-refused decides each hit alone.
        let couplings = [Coupling::AllOrNothing, Coupling::EachAlone];
        for kind in kinds.iter().copied() {
            let rules = rules(algorithm, make, couplings[number % 2]);
            let compared = runtime.block_on(async {
                let service = start(rules.clone()).await;
                compare(&service, rules, kind, algorithm, each).await
            });
            let compared = compared.unwrap_or_else(|error| panic!("{store}: {error}"));
            assert!(compared.refused * 20 > each, "{compared:?}: hardly a request was refused");
            assert!(compared.refused * 20 < each * 19, "{compared:?}: hardly a request passed");
            all.requests += compared.requests;
            all.decisions += compared.decisions;
            all.refused += compared.refused;
        }
    }
    let Compared { requests, decisions, refused } = all;
    eprintln!(
        "{store}: {requests} requests, {decisions} decisions, {refused} requests refused, \
         0 differences"
    );
}

#[test]
fn simulation_decides_as_a_live_limiter_on_memory() {
    compare_all("memory", async |rules| Service::on_memory(rules));
}

#[test]
fn simulation_decides_as_a_live_limiter_on_redis() {
    let server = Arc::new(RedisServer::start());
    compare_all("redis", async |rules| {
        server.query::<()>(&["FLUSHALL"]);
        server.set_clock(T0);
        Service::on_redis(rules, Arc::clone(&server))
    });
}
