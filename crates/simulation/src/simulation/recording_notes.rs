//! Remarks on recordings: what they do not have.

use rlaas_core::rules::RuleSet;

use crate::recording::{Header, UndecidableRule, undercounted_rules};

/// Returns the remarks on recordings with these headers: a sample, rules that see only a share of it,
/// and rules that were left out because values are hashed.
pub fn recording_notes(
    headers: &[Header],
    rules: &RuleSet,
    undecidable: &[UndecidableRule],
) -> Vec<String> {
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
    if !undecidable.is_empty() {
        let rules: Vec<_> =
            undecidable.iter().map(|rule| format!("{} ({})", rule.name, rule.reason)).collect();
        notes.push(format!("not decidable, and left out: {}", rules.join(", ")));
    }
    notes
}
