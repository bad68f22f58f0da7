//! Rules from YAML: accepted ones decide requests, others are refused with a reason.

#![no_main]

use libfuzzer_sys::fuzz_target;
use rlaas_limiter::yaml::{YamlError, read_rules, read_specs};
use rlaas_limiter::{Limiter, Request};

const REQUESTS: [(&str, &str); 3] = [("alice", ""), ("vip-7", "/v1/pay"), ("x", "/search/a.png")];

fuzz_target!(|text: &str| {
    let rules = match read_rules(text) {
        Ok(rules) => rules,
        Err(YamlError::Syntax(reason)) => return assert!(!reason.to_string().is_empty()),
        Err(YamlError::Invalid(problems)) => return assert!(!problems.is_empty()),
    };
    let count = rules.iter().count();
    let specs = read_specs(text).expect("read a line above");
    // More rules than may meet one request are refused here.
    let Ok(limiter) = Limiter::builder().rules(specs).build() else { return };
    for (user, resource) in REQUESTS {
        let attributes = [("plan", "free"), ("api_key", "k"), ("ip", "10.0.0.1")];
        let request = Request::user(user).resource(resource).attributes(&attributes).cost(2);
        let request = request.build().expect("within the bounds");
        let verdict = limiter.check_now(&request).expect("memory never waits");
        let verdict = verdict.expect("memory never fails");
        assert!(verdict.decisions.len() <= count, "more decisions than rules");
    }
});
