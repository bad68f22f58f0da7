//! Remarks on recordings: what they do not have.

use rlaas_core::rules::RuleSet;

use crate::recording::{Header, undercounted_rules};

/// Returns the remarks on recordings with these headers: a sample, and rules that see only a share of it.
pub fn recording_notes(headers: &[Header], rules: &RuleSet) -> Vec<String> {
    let mut notes = Vec::new();
    let share = headers.iter().filter_map(|header| header.sample.as_ref());
    if let Some(share) = share.map(|sample| sample.share_ppm).min() {
        let percent = f64::from(share) / 10_000.0;
        notes.push(format!("the recording has {percent} % of the keys"));
    }
    let undercounted = undercounted_rules(rules, headers);
    if !undercounted.is_empty() {
        let rules: Vec<_> =
            undercounted.iter().map(|(rule, part)| format!("{rule} ({part})")).collect();
        let text =
            "undercounted, because their keys lack a part by which the recording was sampled";
        notes.push(format!("{text}: {}", rules.join(", ")));
    }
    notes
}
