//! Response headers that describe a verdict: the limits, and when to try again.
//!
//! This module makes names and values only. They become HTTP headers, gRPC metadata, headers that
//! Envoy adds to responses of its upstreams, or headers that a tower layer adds to responses of the
//! service that it wraps.
//!
//! | header | content |
//! | --- | --- |
//! | `ratelimit-policy` | every enforced rule, quotas included: units per window, and the burst if it differs |
//! | `ratelimit` | the same rules, on a denial only those that deny: units left (0 in debt), and seconds until the limit resets |
//! | `ratelimit-limit`, `-remaining`, `-reset` | the deciding rule, for clients of older drafts; a burst above the limit is reported as the limit |
//! | `retry-after` | on a denial: seconds until the same request would pass |
//!
//! The draft has no parameter for a burst, and requires a vendor prefix for parameters that it does
//! not define: hence `rlaas-burst`.
//!
//! **Source:** draft-ietf-httpapi-ratelimit-headers-11, sections 3 and 4; its revision 06 for the
//! older three; RFC 9651, 3.3.3 (strings); RFC 9110, 10.2.3 (`Retry-After`).

use std::fmt::Write;

use crate::clock::Micros;
use crate::summary::{RuleSummary, Summary};

/// Selects the headers that describe the limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LimitHeaders {
    /// None.
    #[default]
    None,
    /// `RateLimit-Policy` and `RateLimit`, of the IETF's draft.
    Draft,
    /// `RateLimit-Limit`, `-Remaining` and `-Reset`, of its older revisions.
    Legacy,
    /// All five headers.
    Both,
}

/// A header name in lower case, and an ASCII value.
pub type Header = (&'static str, String);

impl LimitHeaders {
    /// Returns the headers that describe the limits in this verdict.
    pub fn for_verdict(self, verdict: &impl Summary) -> Vec<Header> {
        match self {
            Self::None => Vec::new(),
            Self::Draft => draft(verdict),
            Self::Legacy => legacy(verdict),
            Self::Both => [draft(verdict), legacy(verdict)].concat(),
        }
    }
}

/// Returns `retry-after` in seconds, rounded up; `None` if waiting does not help.
pub fn retry_after(verdict: &impl Summary) -> Option<Header> {
    let wait = verdict.retry_after()?.as_secs_ceil();
    Some(("retry-after", wait.to_string()))
}

/// Returns the name of a rule as a policy name that a structured field can carry: `%` and all bytes
/// that are not visible ASCII or space are percent-encoded.
pub fn policy_name(rule: &str) -> String {
    let mut name = String::with_capacity(rule.len());
    for byte in rule.bytes() {
        match byte {
            b'%' | ..b' ' | 0x7f.. => push(&mut name, format_args!("%{byte:02X}")),
            _ => name.push(char::from(byte)),
        }
    }
    name
}

/// Returns a policy name in quotes, for a structured field or JSON.
pub(crate) fn quoted(policy: &str) -> String {
    format!("\"{}\"", policy.replace('\\', r"\\").replace('"', "\\\""))
}

/// Returns the policy name of a rule in quotes. Most names are the same in them.
fn quoted_name(rule: &str) -> String {
    if rule.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_')) {
        return ["\"", rule, "\""].concat();
    }
    quoted(&policy_name(rule))
}

fn draft(verdict: &impl Summary) -> Vec<Header> {
    let (mut policies, mut limits) = (String::with_capacity(64), String::with_capacity(64));
    for rule in verdict.rules() {
        let name = quoted_name(rule.name);
        let window = rule.window.and_then(whole_seconds);
        item(&mut policies, &name, [("q", Some(rule.quota)), ("w", window)]);
        if rule.has_slots {
            policies.push_str(";qu=\"concurrent-requests\"");
        }
        if let Some(burst) = rule.burst {
            push(&mut policies, format_args!(";rlaas-burst={burst}"));
        }
        if let (true, Some(remaining)) = (rule.is_relevant, rule.remaining) {
            item(&mut limits, &name, [("r", Some(remaining)), ("t", reset(&rule))]);
        }
    }
    let fields = [("ratelimit-policy", policies), ("ratelimit", limits)];
    fields.into_iter().filter(|(_, list)| !list.is_empty()).collect()
}

fn legacy(verdict: &impl Summary) -> Vec<Header> {
    let Some(rule) = verdict.deciding_rule() else { return Vec::new() };
    // The reported limit must not be less than the units that can remain.
    let most = rule.burst.max(rule.remaining).unwrap_or_default();
    let quota = rule.quota.max(most);
    let numbers = [
        ("ratelimit-limit", Some(quota)),
        ("ratelimit-remaining", rule.remaining),
        ("ratelimit-reset", rule.remaining.and_then(|_| reset(&rule))),
    ];
    numbers.into_iter().filter_map(|(name, number)| Some((name, number?.to_string()))).collect()
}

/// Returns the seconds until the limit resets, rounded up.
fn reset(rule: &RuleSummary<'_>) -> Option<u64> {
    rule.reset.map(Micros::as_secs_ceil)
}

/// Returns the window in seconds. A window that is not a whole number of seconds is omitted,
/// because the draft has no fractions.
fn whole_seconds(window: Micros) -> Option<u64> {
    let seconds = window.as_secs_ceil();
    (Micros::from_secs(seconds) == window).then_some(seconds)
}

/// Appends a list member: a quoted string with the integer parameters that are set.
fn item(list: &mut String, name: &str, parameters: [(&str, Option<u64>); 2]) {
    list.push_str(if list.is_empty() { "" } else { ", " });
    list.push_str(name);
    for (key, number) in parameters {
        if let Some(number) = number {
            list.extend([";", key, "=", &number.to_string()]);
        }
    }
}

fn push(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    text.write_fmt(arguments).expect("writing to a string does not fail");
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::sync::Arc;

    use super::*;
    use crate::algorithm::{Algorithm, Limit};
    use crate::clock::{Clock, Deadline, ManualClock, Timestamp};
    use crate::limiter::{Limiter, Verdict};
    use crate::observer::NoObserver;
    use crate::rules::{Grant, Matcher, Mode, Request, RequestFields, Rule, RuleSet};
    use crate::store::{MemorySettings, MemoryStore, Store};

    fn rule(name: &str, units: u64, window: Micros) -> Rule {
        let limit = Limit::new(units, window).expect("a valid limit");
        let rule = Rule::new_default(Algorithm::SlidingWindowLog, limit);
        Rule { name: name.into(), matcher: Matcher::default(), ..rule }
    }

    fn limiter(rules: Vec<Rule>) -> Limiter {
        let observer = Arc::new(NoObserver);
        let clock = Clock::Manual(ManualClock::new(Timestamp::from_millis(1_700_000_100_000)));
        let store = MemoryStore::new(MemorySettings::default(), clock, observer.clone());
        let rules = RuleSet::new(rule("default", 5, Micros::from_secs(60)), rules);
        Limiter::new(rules, Store::Memory(store), observer)
    }

    async fn check(limiter: &Limiter, cost: u64) -> Verdict {
        let fields = RequestFields {
            user_id: "alice",
            resource: "",
            attributes: &HashMap::new(),
            cost: Some(cost),
            dry_run: false,
        };
        let request = Request::new(fields).expect("a valid request");
        limiter.check(&request, Deadline::NEVER).await.expect("a verdict")
    }

    fn response_headers(verdict: &Verdict) -> Vec<(&'static str, String)> {
        let limits = LimitHeaders::Both.for_verdict(verdict).into_iter();
        limits.chain(retry_after(verdict)).collect()
    }

    fn headers(expected: &[(&'static str, &str)]) -> Vec<Header> {
        expected.iter().map(|(name, value)| (*name, (*value).to_owned())).collect()
    }

    #[tokio::test]
    async fn headers_list_all_enforced_rules_and_on_a_denial_those_that_deny() {
        let trial = Rule { mode: Mode::Shadow, ..rule("trial", 1, Micros::from_secs(1)) };
        let limiter = limiter(vec![
            rule("hour", 100, Micros::from_secs(3600)),
            rule("quick", 3, Micros::from_millis(2500)),
            trial,
        ]);
        let policy = ("ratelimit-policy", "\"hour\";q=100;w=3600, \"quick\";q=3");
        assert_eq!(
            response_headers(&check(&limiter, 2).await),
            headers(&[
                policy,
                ("ratelimit", "\"hour\";r=98;t=3600, \"quick\";r=1;t=3"),
                ("ratelimit-limit", "3"),
                ("ratelimit-remaining", "1"),
                ("ratelimit-reset", "3"),
            ])
        );
        assert_eq!(
            response_headers(&check(&limiter, 2).await),
            headers(&[
                policy,
                ("ratelimit", "\"quick\";r=1;t=3"),
                ("ratelimit-limit", "3"),
                ("ratelimit-remaining", "1"),
                ("ratelimit-reset", "3"),
                ("retry-after", "3"),
            ])
        );
        // Waiting does not help.
        let impossible = response_headers(&check(&limiter, 4).await);
        assert_eq!(impossible[1].1, "\"quick\";r=1;t=3");
        assert!(!impossible.iter().any(|(name, _)| *name == "retry-after"), "{impossible:?}");
    }

    #[tokio::test]
    async fn a_burst_is_listed_if_it_differs_from_the_limit() {
        let bucket = |algorithm, burst| {
            let limit =
                Limit::new(100, Micros::from_secs(60)).and_then(|limit| limit.with_burst(burst));
            let limit = limit.expect("a valid limit");
            Rule { algorithm, grant: Grant::Limited(limit), ..rule("b", 1, Micros::from_secs(1)) }
        };
        for algorithm in [Algorithm::TokenBucket, Algorithm::Gcra, Algorithm::LeakyBucket] {
            let larger = check(&limiter(vec![bucket(algorithm, 150)]), 1).await;
            assert_eq!(
                response_headers(&larger),
                headers(&[
                    ("ratelimit-policy", "\"b\";q=100;w=60;rlaas-burst=150"),
                    ("ratelimit", "\"b\";r=149;t=1"),
                    ("ratelimit-limit", "150"),
                    ("ratelimit-remaining", "149"),
                    ("ratelimit-reset", "1"),
                ])
            );
            let smaller = response_headers(&check(&limiter(vec![bucket(algorithm, 10)]), 1).await);
            assert_eq!(smaller[0].1, "\"b\";q=100;w=60;rlaas-burst=10");
            assert_eq!(smaller[2].1, "100");
            let equal = response_headers(&check(&limiter(vec![bucket(algorithm, 100)]), 1).await);
            assert_eq!(equal[0].1, "\"b\";q=100;w=60");
        }
        // The burst is ignored for an algorithm that has none.
        let log =
            response_headers(&check(&limiter(vec![bucket(Algorithm::FixedWindow, 150)]), 1).await);
        assert_eq!(log[0].1, "\"b\";q=100;w=60");
    }

    #[tokio::test]
    async fn a_ban_has_no_reset_and_an_unlimited_grant_has_no_headers() {
        let banned = Rule { grant: Grant::Banned, ..rule("ban", 1, Micros::from_secs(1)) };
        assert_eq!(
            response_headers(&check(&limiter(vec![banned]), 1).await),
            headers(&[
                ("ratelimit-policy", "\"ban\";q=0"),
                ("ratelimit", "\"ban\";r=0"),
                ("ratelimit-limit", "0"),
                ("ratelimit-remaining", "0"),
            ])
        );
        let unlimited = Rule { grant: Grant::Unlimited, ..rule("ops", 1, Micros::from_secs(1)) };
        assert_eq!(response_headers(&check(&limiter(vec![unlimited]), 1).await), []);
    }

    #[tokio::test]
    async fn every_rule_name_becomes_a_valid_quoted_string() {
        let odd = limiter(vec![rule("a \"b\\c\" 100%\r\né", 5, Micros::from_secs(1))]);
        let [policy, ..] = &*LimitHeaders::Draft.for_verdict(&check(&odd, 1).await) else {
            panic!()
        };
        assert_eq!(policy.1, r#""a \"b\\c\" 100%25%0D%0A%C3%A9";q=5;w=1"#);
        assert_eq!(LimitHeaders::None.for_verdict(&check(&odd, 1).await), []);
    }
}
