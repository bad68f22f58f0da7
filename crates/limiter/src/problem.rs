//! The members of a problem document for a denied request.
//!
//! **Source:** draft-ietf-httpapi-ratelimit-headers-11, 5.1 (the problem type `quota-exceeded`).

use crate::headers::{policy_name, retry_after};
use crate::summary::Summary;

/// URI of the problem type.
pub const TYPE: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";
/// Title of the problem type.
pub const TITLE: &str = "Quota Exceeded";

/// Returns the `detail` member: when to try again.
pub fn detail(verdict: &impl Summary) -> String {
    match retry_after(verdict) {
        Some((_, seconds)) if seconds == "1" => "try again after 1 second".to_owned(),
        Some((_, seconds)) => format!("try again after {seconds} seconds"),
        None => "waiting does not help".to_owned(),
    }
}

/// Returns the `violated-policies` member: the names of the policies that deny the request.
pub fn violated_policies(verdict: &impl Summary) -> impl Iterator<Item = String> {
    verdict.rules().filter(|rule| rule.is_relevant).map(|rule| policy_name(rule.name))
}
