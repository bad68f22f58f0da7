//! The library as embedders use it: rules from code and from YAML, errors, allocations.

use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use rlaas_limiter::clock::{Clock, ManualClock, Timestamp};
use rlaas_limiter::rules::Unmatched;
use rlaas_limiter::{BuildError, CheckError, Deadline, Limiter, Request, Rule};

#[path = "../examples/embed.rs"]
mod example;

const MINUTE: Duration = Duration::from_secs(60);

fn allows(limiter: &Limiter, user: &str) -> bool {
    let request = Request::user(user).build().expect("a valid request");
    limiter.check_now(&request).expect("memory never waits").expect("a verdict").is_allowed()
}

#[test]
fn clones_share_states_and_rules() {
    let rule = Rule::gcra("login").limit(2).per(MINUTE);
    let limiter = Limiter::builder().rule(rule).build().expect("a limiter");
    let (clone, (worker, _keep_connected)) = (limiter.clone(), limiter.for_worker());
    assert!(allows(&limiter, "alice") && allows(&clone, "alice"));
    assert!(!allows(&worker, "alice") && allows(&worker, "bob"));
    let no_rules = Limiter::builder().build().expect("a limiter");
    clone.replace_rules(no_rules.snapshot().rules.clone());
    assert!(allows(&limiter, "alice") && allows(&worker, "alice"));
}

#[test]
fn rules_replaced_by_several_callers_at_once_have_a_revision_each() {
    const CALLERS: u64 = 4;
    const EACH: u64 = 500;
    let limiter = Limiter::builder().build().expect("a limiter");
    let replace = |caller: u64| {
        let revision = |number: u64| {
            let rule = Rule::gcra("login").limit(1 + caller * EACH + number).per(MINUTE);
            let other = Limiter::builder().rule(rule).build().expect("a limiter");
            limiter.replace_rules(other.snapshot().rules.clone())
        };
        (0..EACH).map(revision).collect::<Vec<u64>>()
    };
    let mut revisions: Vec<u64> = std::thread::scope(|scope| {
        let callers: Vec<_> =
            (0..CALLERS).map(|caller| scope.spawn(move || replace(caller))).collect();
        callers.into_iter().flat_map(|caller| caller.join().expect("revisions")).collect()
    });
    revisions.sort_unstable();
    assert!(revisions.iter().copied().eq(2..=1 + CALLERS * EACH), "each revision is used once");
    assert_eq!(limiter.snapshot().revision, 1 + CALLERS * EACH);
}

#[test]
fn time_comes_from_the_clock() {
    let clock = ManualClock::new(Timestamp::from_millis(1_700_000_100_000));
    let rule = Rule::token_bucket("login").limit(1).per(MINUTE);
    let builder = Limiter::builder().rule(rule).clock(Clock::Manual(clock.clone()));
    let limiter = builder.build().expect("a limiter");
    assert!(allows(&limiter, "alice") && !allows(&limiter, "alice"));
    clock.set(clock.now() + MINUTE.into());
    assert!(allows(&limiter, "alice"));
}

#[test]
fn requests_that_no_rule_matches_pass_unless_the_policy_says_otherwise() {
    let rule = || Rule::gcra("exports").resource("/export").limit(1).per(MINUTE);
    let limiter = Limiter::builder().rule(rule()).build().expect("a limiter");
    assert!((0..100).all(|_| allows(&limiter, "alice")));
    let strict = Limiter::builder().rule(rule()).unmatched(Unmatched::Deny);
    let strict = strict.build().expect("a limiter");
    let request = Request::user("alice").build().expect("a valid request");
    assert!(matches!(strict.check_now(&request), Some(Err(CheckError::NoRule))));
}

#[test]
fn an_invalid_rule_is_an_error_that_names_its_fields() {
    let many = Rule::gcra("a").limit(2_000_000_000).per(MINUTE);
    let brief = Rule::gcra("b c").limit(1).per(Duration::from_micros(1));
    let error = Limiter::builder().rule(many).rule(brief).rule(Rule::leaky_bucket("d")).build();
    let Err(BuildError::Rules(problems)) = error else { panic!("a limiter of odd rules") };
    let fields: Vec<&str> = problems.iter().map(|problem| problem.field.as_str()).collect();
    let expected =
        ["rules[0].limit", "rules[1].name", "rules[1].window", "rules[2].limit", "rules[2].window"];
    assert_eq!(fields, expected);
}

#[cfg(feature = "yaml")]
#[test]
fn rules_can_come_from_yaml() {
    let yaml = "unmatched: allow\nrules: [{ name: login, algorithm: gcra, limit: 1, window: 1m }]";
    let limiter = Limiter::builder().yaml(yaml).expect("YAML").build().expect("a limiter");
    assert!(allows(&limiter, "alice") && !allows(&limiter, "alice"));
    assert!(matches!(Limiter::builder().yaml("rules: ["), Err(BuildError::Yaml(_))));
    let wrong = Limiter::builder().yaml("rules: [{ name: login, limit: 1, window: never }]");
    let error = wrong.expect("YAML").build().expect_err("no window");
    assert!(error.to_string().starts_with("rules[0].window: "), "{error}");
}

#[test]
fn decisions_from_memory_allocate_nothing() {
    const DECISIONS: u64 = 1_000;
    // No unit is refilled during the test.
    let rule = Rule::gcra("login").limit(DECISIONS).per(Duration::from_secs(86400));
    let limiter = Limiter::builder().rule(rule).build().expect("a limiter");
    let request = Request::user("alice").attributes(&[("plan", "pro")]);
    let request = request.build().expect("a valid request");
    let check = || {
        let deciding = pin!(limiter.check(&request, Deadline::NEVER));
        let decided = deciding.poll(&mut Context::from_waker(Waker::noop()));
        let Poll::Ready(Ok(verdict)) = decided else { panic!("memory never waits") };
        verdict.is_allowed()
    };
    assert!(check(), "the key is new");
    let mut allowed = 0;
    let counted = allocation_counter::measure(|| {
        for _ in 0..DECISIONS {
            allowed += u64::from(check());
            allowed += u64::from(allows(&limiter, "alice"));
        }
    });
    // Denials are decisions too.
    assert_eq!((counted.count_total, allowed), (0, DECISIONS - 1));
}

#[test]
fn a_decision_of_two_rules_allocates_three_lists() {
    let rule = |name| Rule::gcra(name).limit(1_000).per(MINUTE);
    let limiter = Limiter::builder().rule(rule("login")).rule(rule("burst"));
    let limiter = limiter.build().expect("a limiter");
    assert!(allows(&limiter, "alice"), "the keys are new");
    let counted = allocation_counter::measure(|| assert!(allows(&limiter, "alice")));
    // Lists of hits, of their outcomes and of decisions. Inline they would be moved with every
    // decision.
    assert_eq!(counted.count_total, 3);
}
