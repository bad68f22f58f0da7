//! Cost of matching a request against many rules. Rules with an exact value are found by lookup.
//!
//! ```sh
//! cargo bench --bench matching
//! ```
//!
//! Nanoseconds from request to plan, median of nine runs, for requests that match one rule; and the
//! ratio to ten rules.
#![expect(clippy::cast_precision_loss, reason = "small counts, shown with few digits")]

use std::collections::HashMap;
use std::hint::black_box;
use std::time::Instant;

use rlaas::algorithm::{Algorithm, Limit};
use rlaas::clock::Micros;
use rlaas::plan::Plan;
use rlaas::rules::{Matcher, Part, Pattern, Request, RequestFields, Rule, RuleSet};

const CALLS: usize = 100_000;

fn main() {
    println!("| rules | ns/request | ratio to 10 rules |");
    println!("| --- | --- | --- |");
    let base = nanos(10);
    for count in [10, 100, 1_000, 10_000] {
        let nanos = nanos(count);
        println!("| {count} | {nanos:.0} | {:.2} |", nanos / base);
    }
}

fn nanos(count: usize) -> f64 {
    let limit = Limit::new(100, Micros::from_secs(60)).expect("a valid limit");
    let default = Rule::new_default(Algorithm::Gcra, limit);
    let resource = |index: usize| format!("/v1/endpoint/{index:05}");
    let rules = (0..count).map(|index| Rule {
        name: format!("rule-{index}").into(),
        matcher: Matcher { patterns: vec![(Part::Resource, Pattern::one(&resource(index)))] },
        ..default.clone()
    });
    let rules = RuleSet::new(default.clone(), rules.collect());
    let attributes = HashMap::new();
    // Ten requests for every number of rules, so that the CPU caches have the same effect.
    let resources: Vec<String> = (0..10).map(|index| resource(index * (count / 10))).collect();
    let requests: Vec<Request<'_>> = resources
        .iter()
        .map(|resource| {
            let (user_id, dry_run) = ("0000000000000042", false);
            let fields =
                RequestFields { user_id, resource, attributes: &attributes, cost: None, dry_run };
            Request::new(fields).expect("a valid request")
        })
        .collect();
    let mut runs: Vec<f64> = (0..9)
        .map(|_| {
            #[expect(clippy::disallowed_methods, reason = "measures")]
            let started = Instant::now();
            for call in 0..CALLS {
                let matches =
                    Plan::for_request(&rules, black_box(&requests[call % requests.len()]));
                assert_eq!(black_box(matches).hits.len(), 1);
            }
            started.elapsed().as_secs_f64() * 1e9 / CALLS as f64
        })
        .collect();
    runs.sort_by(f64::total_cmp);
    runs[4]
}
