//! Requests that match many rules are decided atomically.

use std::collections::HashMap;

use super::{Stored, Subject};
use crate::algorithm::{Algorithm, Limit, Outcome};
use crate::clock::{Deadline, Micros};
use crate::rules::{
    Grant, Matcher, Mode, Override, Part, Pattern, Request, RequestFields, Rule, RuleSet,
};
use crate::verdict::Verdict;
use tokio::task::JoinSet;

const MINUTE: Micros = Micros::from_secs(60);

fn limited(units: u64) -> Grant {
    Grant::Limited(Limit::new(units, MINUTE).expect("a valid limit"))
}

fn tenant() -> Part {
    Part::Attribute("tenant".to_owned())
}

/// A rule for every request, keyed by these parts.
fn rule(name: &str, algorithm: Algorithm, units: u64, key_by: &[Part]) -> Rule {
    let limit = Limit::new(units, MINUTE).expect("a valid limit");
    let default = Rule::new_default(algorithm, limit);
    Rule { name: name.into(), key_by: key_by.to_vec(), ..default }
}

fn on(part: Part, text: &str) -> Matcher {
    Matcher { patterns: vec![(part, Pattern::one(text))] }
}

/// These rules, and a default rule with a high limit.
fn set(rules: Vec<Rule>) -> RuleSet {
    let wide = Limit::new(1_000_000, MINUTE).expect("a valid limit");
    RuleSet::new(Rule::new_default(Algorithm::FixedWindow, wide), rules)
}

/// 10 a minute per user, 20 per endpoint, 3 per tenant.
pub(super) fn three_rules() -> RuleSet {
    set(vec![
        rule("user", Algorithm::TokenBucket, 10, &[Part::UserId]),
        rule("endpoint", Algorithm::FixedWindow, 20, &[Part::Resource]),
        rule("tenant", Algorithm::SlidingWindowLog, 3, &[tenant()]),
    ])
}

/// A shadow rule of 2 a minute beside an enforced rule of 4 a minute.
pub(super) fn shadow_and_real() -> RuleSet {
    set(vec![
        Rule { mode: Mode::Shadow, ..rule("trial", Algorithm::Gcra, 2, &[Part::UserId]) },
        rule("real", Algorithm::TokenBucket, 4, &[Part::UserId]),
    ])
}

/// Quotas of 1 and 3 a minute beside an enforced rule of 9 a minute.
pub(super) fn two_quotas() -> RuleSet {
    set(vec![
        Rule { mode: Mode::Quota, ..rule("a", Algorithm::FixedWindow, 1, &[Part::UserId]) },
        Rule { mode: Mode::Quota, ..rule("b", Algorithm::TokenBucket, 3, &[Part::UserId]) },
        rule("c", Algorithm::Gcra, 9, &[Part::UserId]),
    ])
}

/// An enforced rule for `/free`, a shadow rule for `/trial`, and a default rule of 1 a minute. The
/// default rule applies beside the shadow rule too.
pub(super) fn free_and_trial() -> RuleSet {
    RuleSet::new(
        Rule::new_default(Algorithm::FixedWindow, Limit::new(1, MINUTE).expect("a valid limit")),
        vec![
            Rule {
                matcher: on(Part::Resource, "/free"),
                ..rule("free", Algorithm::FixedWindow, 9, &[Part::UserId])
            },
            Rule {
                matcher: on(Part::Resource, "/trial"),
                mode: Mode::Shadow,
                ..rule("trial", Algorithm::FixedWindow, 9, &[Part::UserId])
            },
        ],
    )
}

/// A default rule of 1 a minute by resource and user.
pub(super) fn by_resource_and_user() -> RuleSet {
    let limit = Limit::new(1, MINUTE).expect("a valid limit");
    let key_by = vec![Part::Resource, Part::UserId];
    RuleSet::new(Rule { key_by, ..Rule::new_default(Algorithm::FixedWindow, limit) }, Vec::new())
}

/// 5 a minute, and for one resource also 5 a second.
pub(super) fn long_and_short() -> RuleSet {
    set(vec![
        rule("long", Algorithm::SlidingWindowLog, 5, &[Part::UserId]),
        Rule {
            matcher: on(Part::Resource, "/short"),
            grant: Grant::Limited(Limit::new(5, Micros::from_secs(1)).expect("a valid limit")),
            ..rule("short", Algorithm::SlidingWindowLog, 5, &[Part::UserId])
        },
    ])
}

/// As many rules as one request may match.
pub(super) fn sixty_four() -> RuleSet {
    let numbered = |number: usize| {
        let algorithm = Algorithm::RATES[number % Algorithm::RATES.len()];
        rule(&format!("rule-{number:02}"), algorithm, 1_000, &[Part::UserId])
    };
    set((0..64).map(numbered).collect())
}

/// 1 a minute by tenant and user.
pub(super) fn by_tenant_and_user() -> RuleSet {
    set(vec![rule("both", Algorithm::FixedWindow, 1, &[tenant(), Part::UserId])])
}

async fn check(
    subject: &Subject,
    user: &str,
    resource: &str,
    attributes: &[(&str, &str)],
) -> Verdict {
    check_cost(subject, user, resource, attributes, 1).await
}

async fn check_cost(
    subject: &Subject,
    user_id: &str,
    resource: &str,
    attributes: &[(&str, &str)],
    cost: u64,
) -> Verdict {
    let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    let attributes: HashMap<String, String> = attributes.iter().map(own).collect();
    let fields = RequestFields {
        user_id,
        resource,
        attributes: &attributes,
        cost: Some(cost),
        dry_run: false,
    };
    let request = Request::new(fields).expect("a valid request");
    subject.limiter.check(&request, Deadline::NEVER).await.expect("a verdict")
}

/// Returns the remaining units of each rule, ordered by name.
async fn left(
    subject: &Subject,
    user: &str,
    resource: &str,
    attributes: &[(&str, &str)],
) -> Vec<i64> {
    let peeked = check_cost(subject, user, resource, attributes, 0).await;
    peeked.decisions.iter().map(|decided| decided.decision.remaining).collect()
}

/// The maximum number of rules on one request.
pub(super) async fn sixty_four_rules_on_one_request(on: Subject) {
    for left in [999, 998] {
        let verdict = check(&on, "alice", "", &[]).await;
        let all = verdict.decisions.iter().map(|decided| decided.decision.remaining);
        assert!(all.eq([left; 64]));
    }
}

pub(super) async fn a_denial_by_one_rule_takes_nothing_from_the_others(on: Subject) {
    let tenant = [("tenant", "acme")];
    for _ in 0..3 {
        assert!(check(&on, "alice", "/pay", &tenant).await.is_allowed());
    }
    let before = left(&on, "alice", "/pay", &tenant).await;
    assert_eq!(before, [17, 0, 7], "endpoint, tenant, user");
    // Without the log of the tenant, whose life every denial extends.
    let dump = || -> Vec<Stored> {
        let stored = on.stored().unwrap_or_default().into_iter();
        stored.filter(|stored| !stored.key.contains("tenant")).collect()
    };
    let bytes = dump();
    assert!(on.stored().is_none() || bytes.len() == 2);
    for _ in 0..5 {
        let denied = check(&on, "alice", "/pay", &tenant).await;
        assert!(!denied.is_allowed());
        assert_eq!(&*denied.deciding().rule, "tenant");
        let remaining: Vec<i64> =
            denied.decisions.iter().map(|decided| decided.decision.remaining).collect();
        assert_eq!(remaining, before, "rules that would allow report their unchanged state");
    }
    assert_eq!(dump(), bytes, "the stored bytes are unchanged");
    assert_eq!(left(&on, "alice", "/pay", &tenant).await, before);
}

pub(super) async fn many_clients_neither_lose_nor_create_units(on: Subject) {
    let mut clients = JoinSet::new();
    for client in 0..200_usize {
        let on = on.clone();
        clients.spawn(async move {
            // Ten users of five tenants on two endpoints.
            let user = format!("user-{}", client % 10);
            let tenant = format!("tenant-{}", client % 5);
            let resource = if client % 2 == 0 { "/pay" } else { "/search" };
            let verdict = check(&on, &user, resource, &[("tenant", &tenant)]).await;
            (verdict.is_allowed(), user, tenant, resource)
        });
    }
    let (mut users, mut tenants, mut resources) = (HashMap::new(), HashMap::new(), HashMap::new());
    for (allowed, user, tenant, resource) in clients.join_all().await {
        let taken = i64::from(allowed);
        *users.entry(user).or_insert(0) += taken;
        *tenants.entry(tenant).or_insert(0) += taken;
        *resources.entry(resource).or_insert(0) += taken;
    }
    assert_eq!(tenants.values().sum::<i64>(), 15, "3 for each of 5 tenants");
    for (user, taken) in users {
        assert_eq!(left(&on, &user, "/x", &[]).await[2], 10 - taken, "{user}");
    }
    for (tenant, taken) in tenants {
        assert_eq!(left(&on, "x", "/x", &[("tenant", &tenant)]).await[1], 3 - taken, "{tenant}");
    }
    for (resource, taken) in resources {
        assert_eq!(left(&on, "x", resource, &[]).await[0], 20 - taken, "{resource}");
    }
}

pub(super) async fn quotas_deny_a_request_together(on: Subject) {
    for expected in [[0, 2, 8], [0, 1, 7], [0, 0, 6]] {
        assert!(check(&on, "alice", "", &[]).await.is_allowed());
        assert_eq!(left(&on, "alice", "", &[]).await, expected);
    }
    let refused = check(&on, "alice", "", &[]).await;
    assert!(!refused.is_allowed());
    assert_eq!(left(&on, "alice", "", &[]).await, [0, 0, 6]);
}

pub(super) async fn a_shadow_rule_counts_but_denies_nothing(on: Subject) {
    for (call, shadow_allows) in [true, true, false, false].into_iter().enumerate() {
        let verdict = check(&on, "alice", "", &[]).await;
        assert!(verdict.is_allowed(), "call {call}");
        assert_eq!(&*verdict.deciding().rule, "real");
        assert_eq!(&*verdict.decisions[1].rule, "trial");
        assert_eq!(verdict.decisions[1].decision.is_allowed(), shadow_allows, "call {call}");
    }
    let denied = check(&on, "alice", "", &[]).await;
    assert!(!denied.is_allowed());
    assert_eq!(&*denied.deciding().rule, "real");
}

pub(super) fn with_overrides() -> RuleSet {
    let granted = |to: &str, grant| Override::new(on(Part::UserId, to), grant);
    set(vec![Rule {
        overrides: vec![
            granted("vip-*", limited(5)),
            granted("vip-gold-*", limited(7)),
            granted("vip-gold-bad", Grant::Banned),
            granted("ops", Grant::Unlimited),
        ],
        ..rule("all", Algorithm::TokenBucket, 2, &[Part::UserId])
    }])
}

pub(super) async fn the_closest_override_applies(on: Subject) {
    for (user, expected) in [("alice", 2), ("vip-1", 5), ("vip-gold-1", 7), ("vip-gold-bad", 0)] {
        let mut passed = 0;
        for _ in 0..10 {
            passed += u32::from(check(&on, user, "", &[]).await.is_allowed());
        }
        assert_eq!(passed, expected, "{user}");
    }
    let banned = check(&on, "vip-gold-bad", "", &[]).await;
    assert_eq!(banned.deciding().decision.outcome, Outcome::Impossible);
    assert_eq!(banned.deciding().grant, Grant::Banned);
    for _ in 0..100 {
        let verdict = check(&on, "ops", "", &[]).await;
        assert!(verdict.is_allowed());
        assert_eq!(verdict.deciding().grant, Grant::Unlimited);
    }
    // Neither a ban nor an unlimited grant needs state.
    assert!(on.stored().is_none_or(|stored| stored.len() == 3));
}

pub(super) async fn the_default_rule_applies_where_no_other_is_enforced(on: Subject) {
    let names = async |resource: &str| -> Vec<String> {
        let verdict = check(&on, resource, resource, &[]).await;
        verdict.decisions.iter().map(|decided| decided.rule.to_string()).collect()
    };
    assert_eq!(names("/free").await, ["free"]);
    assert_eq!(names("/trial").await, ["trial", "default"]);
    assert_eq!(names("/else").await, ["default"]);
}

pub(super) async fn the_default_rule_by_resource_and_user(on: Subject) {
    for (resource, allowed) in [("r1", true), ("r2", true), ("r1", false), ("r2", false)] {
        assert_eq!(check(&on, "alice", resource, &[]).await.is_allowed(), allowed, "{resource}");
    }
}

pub(super) async fn a_jump_for_a_short_window_is_a_step_back_for_a_long_one(on: Subject) {
    on.at(20.0);
    for _ in 0..5 {
        assert!(check(&on, "alice", "", &[]).await.is_allowed());
    }
    on.at(10.0);
    assert!(!check(&on, "alice", "", &[]).await.is_allowed());
    // Ten seconds back is more than the window of `short`: there the clock follows. It is less than
    // the window of `long`: there the clock is frozen.
    check(&on, "bob", "/short", &[]).await;
    assert!(!check(&on, "alice", "", &[]).await.is_allowed(), "no unit is granted twice");
}

pub(super) async fn hostile_values_never_reach_another_state(on: Subject) {
    let long = "x".repeat(1024);
    let values = [
        "",
        "a",
        "b",
        "a:b",
        "b:a",
        ":",
        "::",
        "%",
        "%3A",
        "%253A",
        "{",
        "}",
        "{a}",
        "\0",
        "\n",
        "a\0",
        "a\n",
        " ",
        "*",
        "default",
        "rule:both:a",
        long.as_str(),
    ];
    for tenant in values {
        for user in values.iter().filter(|user| !user.is_empty()) {
            let verdict = check(&on, user, "", &[("tenant", tenant)]).await;
            assert!(verdict.is_allowed(), "{tenant:?} {user:?} shares a state");
        }
    }
    for user in values.iter().filter(|user| !user.is_empty()) {
        assert!(
            check(&on, user, "", &[]).await.is_allowed(),
            "requests without a tenant have their own state"
        );
        assert!(!check(&on, user, "", &[]).await.is_allowed());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::on_memory;
    use crate::rules::TextPattern;

    /// On several threads, as in a service. A redis-server has only one.
    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn many_threads_neither_lose_nor_create_units() {
        many_clients_neither_lose_nor_create_units(on_memory(three_rules())).await;
    }

    #[tokio::test]
    async fn the_order_of_rules_does_not_matter() {
        let make = |names: [&str; 4]| {
            let rules = names.map(|name| match name {
                "a" => Rule {
                    matcher: on(Part::Resource, "/a*"),
                    ..rule(name, Algorithm::Gcra, 3, &[Part::UserId])
                },
                "b" => rule(name, Algorithm::TokenBucket, 3, &[Part::UserId]),
                "c" => Rule {
                    matcher: Matcher {
                        patterns: vec![(
                            Part::Resource,
                            Pattern::OneOf(vec![TextPattern::new("/ab"), TextPattern::new("/ac")]),
                        )],
                    },
                    ..rule(name, Algorithm::SlidingWindowLog, 2, &[Part::Resource])
                },
                _ => Rule {
                    mode: Mode::Shadow,
                    ..rule(name, Algorithm::FixedWindow, 1, &[Part::UserId])
                },
            });
            on_memory(set(rules.to_vec()))
        };
        let (one, other) = (make(["a", "b", "c", "d"]), make(["d", "c", "b", "a"]));
        for call in 0..40_u32 {
            let (user, resource) =
                (format!("u{}", call % 3), ["/ab", "/ac", "/b", "/a"][call as usize % 4]);
            let shown = async |subject: &Subject| {
                let verdict = check(subject, &user, resource, &[]).await;
                format!("{:?}", (verdict.is_allowed(), verdict.deciding(), &verdict.decisions))
            };
            assert_eq!(shown(&one).await, shown(&other).await, "call {call}");
        }
    }
}
