//! Recent traffic of a limiter that decides.

use std::ops::ControlFlow;

use rlaas_limiter::Limiter;
use rlaas_simulation::simulation::{NoteKind, SimulationSettings};

use super::*;
use crate::algorithm::{Algorithm, Limit};
use crate::clock::Micros;
use crate::observer::NoObserver;
use crate::rules::{KeyHasher, Matcher, Pattern, Rule, RuleSet};
use crate::store::{MemorySettings, MemoryStore, Store};

fn rules(units: u64, named: Vec<Rule>) -> RuleSet {
    let limit = Limit::new(units, Micros::from_secs(3_600)).expect("a limit");
    RuleSet::new(Rule::new_default(Algorithm::Gcra, limit), named)
}

fn named(name: &str, users: &str, units: u64) -> Rule {
    let limit = Limit::new(units, Micros::from_secs(3_600)).expect("a limit");
    let matcher = Matcher { patterns: vec![(Part::UserId, Pattern::one(users))] };
    Rule { name: name.into(), matcher, ..Rule::new_default(Algorithm::Gcra, limit) }
}

/// Not a keyed hash, but different for the texts of these tests.
fn hasher() -> KeyHasher {
    KeyHasher::new(|value| {
        value.iter().enumerate().fold([7; 16], |mut hash, (at, byte)| {
            hash[at % 16] = hash[at % 16].wrapping_mul(31) ^ byte;
            hash
        })
    })
}

/// Keeps the requests of users, each of whom makes ten.
fn recent(users: &[&str], hashed: Option<Vec<Part>>) -> TrafficRecorder {
    let keep = Micros::from_secs(900);
    let settings = PreviewSettings { keep, hashed, hasher: hasher() };
    let metrics = RecordMetrics::default();
    let recorder = TrafficRecorder::start(None, Some(settings), metrics).expect("a thread");
    let observer = Arc::new(NoObserver);
    let store = MemoryStore::new(MemorySettings::default(), Clock::default(), observer.clone());
    let limiter = Limiter::new(rules(5, Vec::new()), Store::Memory(store), observer);
    for _ in 0..10 {
        for user in users {
            let request = Request::user(user).build().expect("a valid request");
            let decided = limiter.check_now(&request).expect("memory decides at once");
            recorder.record(&request, &decided);
            let dry = Request::user(user).dry_run().build().expect("a valid request");
            recorder.record(&dry, &limiter.check_now(&dry).expect("memory decides at once"));
            recorder.record(&request.in_project("shop"), &decided);
            if *user == "alice" {
                recorder.record(&request.in_project("blog"), &decided);
            }
        }
    }
    // The thread has written all of it when it has ended.
    recorder.close();
    recorder
}

fn simulate(recent: &RecentTraffic, settings: SimulationSettings, project: &str) -> RecentReport {
    let project = project.to_owned();
    let wanted = WantedRequests { project, ..WantedRequests::default() };
    recent.simulate(settings, &wanted, || ControlFlow::Continue(())).expect("a report")
}

#[test]
fn each_project_has_its_own_requests() {
    let recorder = recent(&["alice", "bob"], None);
    let recent = recorder.recent().expect("a preview");
    for (project, requests, refused) in [("", 20, 14), ("shop", 20, 14), ("blog", 10, 7)] {
        let candidate = rules(3, Vec::new()).in_project(project);
        let report = simulate(recent, SimulationSettings::new(candidate), project).simulation;
        assert_eq!((report.all.requests, report.all.refused), (requests, refused), "{project}");
        let ids: Vec<&str> = report.hardest_hit.iter().map(|hit| hit.id.as_str()).collect();
        let expected = if project == "blog" { &["alice"][..] } else { &["alice", "bob"] };
        assert_eq!(ids, expected, "{project}");
    }
    let nobody = simulate(recent, SimulationSettings::new(rules(3, Vec::new())), "nobody");
    assert!(nobody.simulation.is_empty() && nobody.from.is_none());
}

#[test]
fn simulation_ends_at_a_pause_and_leaves_the_traffic_whole() {
    let recorder = recent(&["alice"], None);
    let recent = recorder.recent().expect("a preview");
    let settings = || SimulationSettings::new(rules(3, Vec::new()));
    for pauses in 0..3 {
        let mut left = pauses;
        let pause = || {
            let flow = if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
            left -= i32::from(flow.is_continue());
            flow
        };
        let ended = recent.simulate(settings(), &WantedRequests::default(), pause);
        assert!(matches!(ended, Err(RecentError::Stopped)) || pauses == 2, "{pauses}");
    }
    assert_eq!(simulate(recent, settings(), "").simulation.all.requests, 10);
    let since = Clock::default().now() + Micros::from_secs(60);
    let wanted = WantedRequests { since, ..WantedRequests::default() };
    let later = recent.simulate(settings(), &wanted, || ControlFlow::Continue(()));
    assert!(later.expect("a report").simulation.is_empty());
}

#[test]
fn recent_traffic_is_decided_by_other_rules() {
    for hashed in [None, Some(vec![Part::UserId])] {
        let recorder = recent(&["alice", "bob"], hashed);
        let recent = recorder.recent().expect("a preview");
        let candidate = rules(3, vec![named("alice", "alice", 8)]);
        let against = Some(rules(5, Vec::new()));
        let settings = SimulationSettings { against, ..SimulationSettings::new(candidate) };
        let report = simulate(recent, settings, "");
        let counts = |name: &str| {
            let rule = report.simulation.rule(name).expect("a rule of the report");
            (rule.counts.requests, rule.counts.refused)
        };
        assert_eq!(counts("alice"), (10, 2));
        assert_eq!(counts("default"), (10, 7));
        assert_eq!(report.simulation.recorded_refusals, 10);
        assert!(report.from.is_some() && report.from <= report.to);
        assert_eq!(report.dropped, 0);
        assert_eq!(report.notes[0].kind, NoteKind::OneInstance);
    }
}

#[test]
fn patterns_on_hashed_values_are_not_decided() {
    let recorder = recent(&["alice"], Some(vec![Part::UserId]));
    let recent = recorder.recent().expect("a preview");
    let settings = SimulationSettings::new(rules(3, vec![named("a", "al*", 8)]));
    let report = simulate(recent, settings, "");
    assert!(report.notes.iter().any(|note| note.kind == NoteKind::Hashed), "{:?}", report.notes);
    assert!(report.simulation.rule("a").is_none());
}
