//! Projects: the same names of rules and the same ids in two projects share nothing.

use super::{Subject, span};
use crate::CheckError;
use crate::algorithm::{Algorithm, Limit, Outcome};
use crate::clock::{Deadline, Micros};
use crate::control::{KeyGrant, OverrideChange};
use crate::limiter::KeyChange;
use crate::plan::{SelectedKey, Selector, SelectorTarget};
use crate::rules::spec::RulesSpec;
use crate::rules::{
    Matcher, Part, Pattern, Request, RequestBuilder, Rule, RuleSet, TextPattern, Unmatched,
};
use crate::verdict::Verdict;

/// Projects with the same rules. The first is none.
const PROJECTS: [&str; 4] = ["", "shop", "shop-1", "p"];

/// A rule for `/pay`, and the default rule for all else: 3 units a minute each, overridable.
pub(super) fn two(algorithm: Algorithm) -> RuleSet {
    let limit = Limit::new(3, Micros::from_secs(60)).expect("a valid limit");
    let default = Rule { overridable: true, ..Rule::new_default(algorithm, limit) };
    let resource = Pattern::OneOf(vec![TextPattern::Exact("/pay".to_owned())]);
    let matcher = Matcher { patterns: vec![(Part::Resource, resource)] };
    let pay = Rule { name: "pay".into(), matcher, ..default.clone() };
    RuleSet::new(default, vec![pay])
}

/// Puts the same rules in force in every project.
fn with_projects(on: &Subject) {
    let rules = on.limiter.snapshot().rules.clone();
    for project in &PROJECTS[1..] {
        on.limiter.replace_project_rules(project, rules.clone());
    }
}

async fn verdict(on: &Subject, request: RequestBuilder<'_>) -> Verdict {
    let request = request.build().expect("a valid request");
    on.limiter.check(&request, Deadline::NEVER).await.expect("a verdict")
}

async fn allows(on: &Subject, project: &str, user: &str, resource: &str) -> bool {
    let request = Request::user(user).resource(resource).in_project(project);
    verdict(on, request).await.is_allowed()
}

/// Returns the key of a user in the rule `pay` of a project.
fn key(on: &Subject, project: &str, user: &str) -> Vec<SelectedKey> {
    let request = Request::user(user).resource("/pay").build().expect("a valid request");
    let snapshot = on.limiter.project_snapshot(project).expect("a project");
    let selector = Selector { target: SelectorTarget::Request(&request), rule: Some("pay") };
    snapshot.rules.select(&selector).expect("a key")
}

pub(super) async fn projects_share_no_units(on: Subject) {
    with_projects(&on);
    for project in PROJECTS {
        for resource in ["/pay", "/other"] {
            for _ in 0..3 {
                assert!(allows(&on, project, "alice", resource).await, "{project} {resource}");
            }
            assert!(!allows(&on, project, "alice", resource).await, "{project} {resource}");
        }
    }
}

pub(super) async fn a_ban_and_a_reset_stay_in_their_project(on: Subject) {
    with_projects(&on);
    for project in PROJECTS {
        for _ in 0..3 {
            assert!(allows(&on, project, "alice", "/pay").await);
        }
    }
    let ban = OverrideChange::new(KeyGrant::Banned, Micros::from_secs(600), b"why");
    let ban = KeyChange::SetOverride(ban.expect("a valid change"));
    for (project, change) in [("shop", KeyChange::Reset), ("shop-1", ban)] {
        let changed =
            on.limiter.change(&key(&on, project, "alice"), &change, Deadline::NEVER).await;
        assert_eq!(changed.expect("a change").after.len(), 1);
    }
    let ban_wait = span(600.0);
    for project in PROJECTS {
        let alice = Request::user("alice").resource("/pay").in_project(project);
        let verdict = verdict(&on, alice).await;
        let is_banned =
            verdict.deciding().decision.outcome == Outcome::Denied { retry_after: ban_wait };
        assert_eq!(verdict.is_allowed(), project == "shop", "{project}");
        assert_eq!(is_banned, project == "shop-1", "{project}");
        let state = on.limiter.inspect(&key(&on, project, "alice"), Deadline::NEVER).await;
        let state = state.expect("a state").swap_remove(0);
        assert_eq!((&*state.rule, state.key.project()), ("pay", project));
        assert_eq!(state.overrides.is_empty(), project != "shop-1", "{project}");
    }
    let listed = on.limiter.store().list_overrides("", 100, Deadline::NEVER).await;
    for found in listed.expect("a page").keys {
        assert_eq!(
            (found.key.project(), found.key.rule(), found.key.id()),
            ("shop-1", "pay", "alice")
        );
    }
}

pub(super) async fn a_request_id_counts_once_in_each_project(on: Subject) {
    if !on.limiter.store().remembers_requests() {
        return;
    }
    with_projects(&on);
    for is_replay in [false, true] {
        for project in PROJECTS {
            let alice = Request::user("alice").request_id("x").cost(2).in_project(project);
            let verdict = verdict(&on, alice).await;
            assert!(verdict.is_allowed(), "{project}");
            assert_eq!(verdict.replayed, is_replay, "{project}");
        }
    }
    for project in PROJECTS {
        assert!(allows(&on, project, "alice", "").await, "{project}");
        assert!(!allows(&on, project, "alice", "").await, "{project}");
    }
}

pub(super) async fn units_are_refunded_in_their_project(on: Subject) {
    with_projects(&on);
    let mut receipts = Vec::new();
    for project in PROJECTS {
        let alice = Request::user("alice").cost(3).in_project(project);
        let alice = alice.build().expect("a valid request");
        let taken = on.limiter.check_with_receipts(&alice, Deadline::NEVER).await;
        receipts.push(taken.expect("a verdict").1);
    }
    on.refund(receipts.swap_remove(1)).await;
    for project in PROJECTS {
        assert_eq!(allows(&on, project, "alice", "").await, project == "shop", "{project}");
    }
    // The state outlives the rules of a project.
    assert!(on.limiter.remove_project("p"));
    on.refund(receipts.swap_remove(1)).await;
    on.limiter.replace_project_rules("p", on.limiter.snapshot().rules.clone());
    assert!(allows(&on, "p", "alice", "").await);
}

pub(super) async fn a_project_has_its_own_rules(on: Subject) {
    let check = |project| {
        let request = Request::user("alice").in_project(project).build().expect("a valid request");
        let limiter = on.limiter.clone();
        async move { limiter.check(&request, Deadline::NEVER).await.map(|verdict| verdict.is_allowed()) }
    };
    assert!(matches!(check("shop").await, Err(CheckError::UnknownProject)));
    let nothing = RulesSpec::default().build_in_project("shop").expect("valid rules");
    let first = on.limiter.replace_project_rules("shop", nothing.clone());
    assert!(matches!(check("shop").await, Err(CheckError::NoRule)));
    assert_eq!(on.limiter.replace_project_rules("shop", nothing.clone()), first);
    for unmatched in [Unmatched::Allow, Unmatched::DefaultRule] {
        let rules = nothing.clone().with_unmatched(unmatched);
        assert!(on.limiter.replace_project_rules("shop", rules) > first);
        assert!(matches!(check("shop").await, Ok(true)), "{unmatched:?}");
    }
    let revision = on.limiter.snapshot().revision;
    assert!(on.limiter.remove_project("shop") && !on.limiter.remove_project("shop"));
    assert!(matches!(check("shop").await, Err(CheckError::UnknownProject)));
    assert!(matches!(check("").await, Ok(true)));
    assert_eq!(on.limiter.snapshot().revision, revision);
}

pub(super) async fn ids_of_any_text_stay_in_their_project(on: Subject) {
    with_projects(&on);
    for _ in 0..3 {
        for user in [
            "p/shop/:alice",
            "/alice",
            "p/shop/pay:alice",
            "p:shop:rate_limit:alice",
            "rlaas:p:shop:rate_limit:alice",
            ":p:shop:rate_limit:alice",
            "%",
            "%2F",
            "{alice}",
            "alice}",
            "control:alice",
            "alice\0",
            "alice:%limits",
        ] {
            for project in ["", "p", "shop-1"] {
                assert!(allows(&on, project, user, "/pay").await, "{project} {user}");
                assert!(allows(&on, project, user, "").await, "{project} {user}");
            }
        }
    }
    for user in ["alice", "shop:alice", "pay:alice"] {
        for _ in 0..3 {
            assert!(allows(&on, "shop", user, "/pay").await, "{user}");
            assert!(allows(&on, "shop", user, "").await, "{user}");
        }
    }
}
