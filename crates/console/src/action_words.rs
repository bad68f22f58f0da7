//! Changes in words: the audit and the history name each by its RPC.

use maud::{Markup, html};
use rlaas_proto::ratelimit::admin::v1::{AuditEntry, Revision};

use super::calls::field_of;
use super::fields::Link;
use super::rule_words::units;
use super::text::{foreign, grouped};

/// Every RPC that the audit names, with its change in words.
const ACTIONS: [(&str, &str); 19] = [
    ("ApplyRules", "Rules published"),
    ("BanKey", "Id banned in a project"),
    ("ClearOverride", "Ban or other limit ended"),
    ("CreateKey", "API key created"),
    ("CreateProject", "Project created"),
    ("CreateRule", "Rule created"),
    ("DeleteProject", "Project deleted"),
    ("DeleteRule", "Rule deleted"),
    ("Refund", "Units given back"),
    ("Reset", "Key reset"),
    ("RestoreCatalogue", "Catalogue restored"),
    ("RevokeKey", "API key revoked"),
    ("Rollback", "Rules rolled back"),
    ("RotateKey", "API key replaced"),
    ("SetMode", "Mode set or ended"),
    ("SetOverride", "Ban or other limit set"),
    ("UpdateKey", "API key changed"),
    ("UpdateProject", "Project changed"),
    ("UpdateRule", "Rule changed"),
];

/// Returns the words for an RPC, if they are known.
fn words(action: &str) -> Option<&'static str> {
    ACTIONS.iter().find(|(rpc, _)| *rpc == action).map(|(_, words)| *words)
}

/// Shows an action in words. Those who write scripts find its RPC in the title.
pub(super) fn action_words(action: &str) -> Markup {
    html! {
        @match words(action) {
            Some(words) => span title=(action) { (words) },
            None => (foreign(action)),
        }
    }
}

/// Shows a revision in words, such as "12 rules published".
pub(super) fn revision_words(Revision { action, changed_rules, .. }: &Revision) -> Markup {
    let of_many = words(action).and_then(|words| words.strip_prefix("Rules "));
    let rules = if *changed_rules == 1 { "rule" } else { "rules" };
    html! {
        @match of_many {
            Some(done) => span title=(action) {
                (grouped((*changed_rules).into())) " " (rules) " " (done)
            },
            None => (action_words(action)),
        }
    }
}

/// Shows the limits of the keys of a change before and after it, or else what they had used; of a change
/// of rules a link to what it changed.
pub(super) fn old_and_new(entry: &AuditEntry) -> Markup {
    let of_keys = entry.old_and_new(units);
    let history = Link::to("history").with("project", field_of(&entry.project_id));
    let revision = entry.revision.to_string();
    html! {
        @if entry.revision > 0 {
            a.nowrap href=(history.with("revision", &revision).with("base", "before")) { "revision " (revision) }
        } @else if of_keys.is_empty() { span.muted { "–" } } @else { (of_keys) }
    }
}

#[cfg(test)]
mod tests {
    use rlaas_proto::json::POOL;

    use super::*;

    /// Beginnings of the names of RPCs that change nothing.
    const READS: [&str; 8] =
        ["Get", "List", "Explain", "Inspect", "LookUp", "TopKeys", "Watch", "Validate"];

    #[test]
    fn every_rpc_of_the_audit_has_words() {
        let mut changes = Vec::new();
        for service in ["AdminService", "ProjectService"] {
            let service = format!("ratelimit.admin.v1.{service}");
            let service = POOL.get_service_by_name(&service).expect("a service");
            let names = service.methods().map(|method| method.name().to_owned());
            changes.extend(names.filter(|name| !READS.iter().any(|read| name.starts_with(read))));
        }
        changes.sort_unstable();
        assert_eq!(changes, ACTIONS.map(|(action, _)| action));
    }

    #[test]
    fn revisions_count_their_rules() {
        let shown = |action: &str, changed_rules| {
            let action = action.to_owned();
            revision_words(&Revision { action, changed_rules, ..Revision::default() }).into_string()
        };
        let published = shown("ApplyRules", 1_200);
        assert_eq!(published, "<span title=\"ApplyRules\">1,200 rules published</span>");
        assert!(shown("Rollback", 1).contains(">1 rule rolled back<"));
        assert!(shown("UpdateRule", 1).contains(">Rule changed<"));
        assert!(shown("<b>", 1).contains("&lt;b&gt;"), "one of a later version");
    }
}
