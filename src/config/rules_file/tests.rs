use std::time::Duration;

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use rlaas_proto::rule_messages::{message, rule_message, spec, without_defaults};

use super::*;
use crate::algorithm::{Algorithm, Limit, OnChange, WindowFrom};
use crate::calendar::CalendarUnit;
use crate::clock::Micros;
use crate::rules::spec::{CalendarSpec, MatcherSpec, OverrideSpec, StoreFailurePolicy};
use crate::rules::{EnforcedShare, Rule, RuleMode, Share, Unmatched};

proptest! {
    #[test]
    fn rule_is_the_same_as_a_message_and_as_a_file(rule in rule()) {
        // What it takes to be valid depends on several fields.
        let Ok(built) = rule.build() else { return Ok(()) };
        if !rule_messages::problems(&rule).is_empty() {
            return Ok(());
        }
        prop_assert_eq!(spec(&message(&rule)).build(), Ok(built.clone()));
        // As the service answers, with all defaults.
        let answered = without_defaults(&spec(&rule_message(&built)));
        prop_assert_eq!(answered.build(), Ok(built));
        let file = RulesFile { project: None, unmatched: None, rules: vec![answered] };
        let read = RulesFile::parse("rules.yaml".to_owned(), file.to_yaml());
        prop_assert_eq!(read.as_ref(), Ok(&file), "{}", file.to_yaml());
    }
}

#[test]
fn most_rules_of_the_property_are_valid() {
    let mut runner = TestRunner::deterministic();
    let mut valid = 0;
    for _ in 0..100 {
        let made = rule().new_tree(&mut runner).expect("a rule").current();
        valid += usize::from(made.build().is_ok() && rule_messages::problems(&made).is_empty());
    }
    assert!(valid > 30, "{valid}");
}

#[test]
fn head_of_a_file_is_read_and_written() {
    let rules = vec![Rule::gcra("login").limit(5).per(Duration::from_mins(1))];
    let project = Some("shop".parse().expect("an id"));
    let file = RulesFile { project, unmatched: Some(Unmatched::Allow), rules };
    let yaml = file.to_yaml();
    assert!(yaml.starts_with("project: shop\nunmatched: allow\nrules:\n"), "{yaml}");
    assert_eq!(RulesFile::parse(String::new(), yaml), Ok(file));
}

#[test]
fn problems_have_the_file_the_key_and_the_line() {
    let yaml = "project: No\nunmatched: maybe\nserver: {}\nrules:\n  - name: a\n    limit: 0\n    \
                window: 1s\n  - {name: b, limit: 1, window: 1s, endpoint: /x, key_by: ip}\n  \
                - {name: b, limt: 1, window: 1s}\n";
    let problems = RulesFile::parse("a.yaml".to_owned(), yaml.to_owned()).expect_err("problems");
    let problems = problems.to_string();
    let expected = [
        "a.yaml: project: must be 1 to 63 lower case letters",
        "a.yaml: unmatched: must be default, allow or deny (line 2",
        "a.yaml: server: unknown key (line 3)",
        "a.yaml: rules[0].limit: must be at least 1: only rules files",
        "a.yaml: rules[2].limt: unknown key, did you mean rules[2].limit? (line 9)",
        "a.yaml: rules[2].name: another rule has this name (line 9",
    ];
    for text in expected {
        assert!(problems.contains(text), "{text} is not in:\n{problems}");
    }
}

fn field<T: Clone + std::fmt::Debug + 'static>(
    value: impl Strategy<Value = T> + 'static,
) -> BoxedStrategy<Field<T>> {
    prop_oneof![1 => Just(Field::Unset), 2 => value.prop_map(Field::Set)].boxed()
}

/// Texts, including those that are other values in YAML without quotes.
fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-z/*.]{1,8}",
        r#"[-#:'"\[\]{},~!&%@|>`? a0-9\n\u{1}\u{85}\u{2028}]{1,6}"#,
        prop::sample::select(vec!["007", "true", "No", "null", "~", "1e3", "60s", "user_id", ""])
            .prop_map(str::to_owned),
    ]
}

fn texts() -> BoxedStrategy<Field<Vec<String>>> {
    field(prop::collection::vec(text(), 1..4))
}

fn matcher() -> impl Strategy<Value = MatcherSpec> {
    let given = prop::collection::vec(text(), 1..4).prop_map(Field::Set);
    let attributes = prop::collection::btree_map(text(), given, 0..3);
    let parts = (texts(), texts(), attributes);
    parts.prop_map(|(resource, user_id, attributes)| MatcherSpec { resource, user_id, attributes })
}

fn exception() -> impl Strategy<Value = OverrideSpec> {
    let grant = prop_oneof![
        Just((Field::Set(true), Field::Unset, Field::Unset)),
        Just((Field::Unset, Field::Set(0), Field::Unset)),
        (1..9_u64, field(1..9_u64))
            .prop_map(|(units, burst)| { (Field::Unset, Field::Set(units), burst) }),
    ];
    let grant = grant.boxed();
    (matcher(), grant).prop_map(|(matcher, (unlimited, limit, burst))| OverrideSpec {
        matcher,
        unlimited,
        limit,
        burst,
        headroom: Field::Unset,
    })
}

fn rule() -> impl Strategy<Value = RuleSpec> {
    let windows = 1..=Limit::MAX_WINDOW.as_micros() / 1_000;
    let windows = windows.prop_map(|millis| Field::Set(Micros::from_micros(millis * 1_000)));
    let shares = (1..=Share::WHOLE).prop_map(|of| Share::new(of).expect("a share"));
    let enforced = (0..=EnforcedShare::ALL.millionths())
        .prop_map(|of| EnforcedShare::new(of).expect("a share"));
    let buckets = vec![Algorithm::TokenBucket, Algorithm::LeakyBucket, Algorithm::Gcra];
    let rate = prop_oneof![
        (field(prop::sample::select(Algorithm::RATES.to_vec())), 1..2_000_u64, Just(Field::Unset)),
        (prop::sample::select(buckets).prop_map(Field::Set), 1..99_u64, field(1..99_u64)),
    ];
    let failure = prop_oneof![
        (Just(Field::Unset), field(any::<bool>()), Just(Field::Unset)),
        (
            field(prop::sample::select(StoreFailurePolicy::ALL.to_vec())),
            Just(Field::Unset),
            Just(Field::Unset),
        ),
        (Just(Field::Set(StoreFailurePolicy::Local)), Just(Field::Unset), field(shares.clone())),
    ];
    let mode = prop_oneof![
        (
            field(prop::sample::select(RuleMode::ALL.to_vec())),
            Just(Field::Unset),
            Just(Field::Unset)
        ),
        (Just(Field::Unset), field(any::<bool>()), Just(Field::Unset)),
        (Just(Field::Set(RuleMode::Enforce)), Just(Field::Unset), field(enforced)),
    ];
    let key_by = prop::collection::btree_set(text(), 1..4);
    let key_by = field(key_by.prop_map(|parts| parts.into_iter().collect()));
    let about = ("[a-z][a-zA-Z0-9_.-]{0,9}", texts(), matcher(), key_by);
    let rest = (
        field(prop::sample::select(OnChange::ALL.to_vec())),
        field(any::<bool>()),
        field(any::<bool>()),
        field(shares),
        (field(1_u64..100), field(Just(false))),
        prop::collection::vec(exception(), 0..3),
    );
    let from = field(prop::sample::select(WindowFrom::ALL.to_vec()));
    let rate = (rate, windows, calendar(), from);
    (about, rate, failure, mode, rest).prop_map(|(about, rate, failure, mode, rest)| {
        let (name, endpoint, matcher, key_by) = about;
        let ((algorithm, limit, burst), window, calendar, window_from) = rate;
        let (on_store_failure, fail_open, local_share) = failure;
        let (mode, shadow, enforce) = mode;
        let (on_change, overridable, breaker_opens_rule, near_limit, costs, overrides) = rest;
        let (cost, post_paid) = costs;
        let is_fixed = algorithm == Field::Set(Algorithm::FixedWindow);
        let is_short = matcher.resource.is_unset();
        let has_window = calendar.is_empty();
        let rule = RuleSpec {
            version: Field::Unset,
            name: Field::Set(name),
            endpoint: if is_short { endpoint } else { Field::Unset },
            matcher,
            key_by,
            algorithm,
            limit: Field::Set(limit),
            window,
            calendar,
            window_from: if is_fixed { window_from } else { Field::Unset },
            burst,
            limit_from: Field::Unset,
            cost,
            post_paid,
            max_debt: Field::Unset,
            reservable: Field::Unset,
            hold_share: Field::Unset,
            notify_at: Field::Unset,
            hold: Field::Unset,
            max_holds: Field::Unset,
            shadow,
            mode,
            enforce,
            on_change,
            local_share,
            on_store_failure,
            fail_open,
            breaker_opens_rule,
            near_limit,
            overridable,
            overrides,
            file: Arc::default(),
            revision: None,
        };
        if has_window {
            return rule;
        }
        let algorithm = Field::Set(Algorithm::FixedWindow);
        let (window, window_from) = (Field::Unset, Field::Unset);
        let (burst, on_change) = (Field::Unset, Field::Unset);
        RuleSpec { algorithm, window, window_from, burst, on_change, ..rule }
    })
}

fn calendar() -> impl Strategy<Value = CalendarSpec> {
    let zones = prop::sample::select(vec!["UTC", "Europe/Berlin", "Asia/Kathmandu"]);
    let parts = (
        prop::sample::select(CalendarUnit::ALL.to_vec()),
        field(zones.prop_map(str::to_owned)),
        field(1..8_u64),
        field("[a-z]{1,8}"),
    );
    let given = parts.prop_map(|(unit, zone, anchor, anchor_from)| {
        let (anchor, anchor_from) = match unit {
            CalendarUnit::Day => (Field::Unset, Field::Unset),
            _ => (anchor, anchor_from),
        };
        CalendarSpec { unit: Field::Set(unit), zone, anchor, anchor_from }
    });
    prop_oneof![3 => Just(CalendarSpec::default()), 1 => given]
}
