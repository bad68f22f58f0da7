//! The fields of the form with the rules of a project.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::digest::{Context, SHA256};

use crate::calls::id_of;
use crate::fields::{FieldError, FormFields};

/// The form as it was sent, or as it begins.
#[derive(Clone, Debug)]
pub(super) struct ChangeForm {
    /// Id of the project.
    pub(super) project: String,
    /// The rules, with line feeds alone.
    pub(super) text: Arc<str>,
    /// The revision of the project that the visitor has seen.
    pub(super) revision: u64,
    /// Name of the rule that the text is of; empty for all rules of the project.
    pub(super) rule: String,
    pub(super) reason: String,
    /// Whether the visitor has seen the plan of this text and revision.
    pub(super) has_seen_plan: bool,
}

impl ChangeForm {
    pub(super) fn new(project: String, rule: String, text: String, revision: u64) -> Self {
        let text = text.into();
        Self { project, rule, text, revision, reason: String::new(), has_seen_plan: false }
    }

    /// Reads the form, whose text may be long.
    pub(super) fn read(fields: &FormFields) -> Result<Self, FieldError> {
        fields.check()?;
        let form = Self {
            project: id_of(fields.get("project")).to_owned(),
            // Browsers send both.
            text: fields.get("rules").replace("\r\n", "\n").into(),
            // No project has the highest one.
            revision: fields.get("revision").parse().unwrap_or(u64::MAX),
            rule: fields.get("name").to_owned(),
            reason: fields.get("reason").to_owned(),
            has_seen_plan: false,
        };
        let planned = fields.get("planned");
        let has_seen_plan = !planned.is_empty() && planned == form.plan_name();
        Ok(Self { has_seen_plan, ..form })
    }

    /// Returns the name of a plan of this form: another one for another text or revision.
    pub(super) fn plan_name(&self) -> String {
        let base = format!("{}\n{}\n{}\n", self.project, self.rule, self.revision);
        let mut digest = Context::new(&SHA256);
        digest.update(base.as_bytes());
        digest.update(self.text.as_bytes());
        URL_SAFE_NO_PAD.encode(digest.finish())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_are_named_by_all_that_matters() {
        let form = ChangeForm::new("shop".to_owned(), String::new(), "rules: []".to_owned(), 7);
        let name = form.plan_name();
        for other in [
            ChangeForm { text: "rules: [ ]".into(), ..form.clone() },
            ChangeForm { revision: 8, ..form.clone() },
            ChangeForm { rule: "pay".to_owned(), ..form.clone() },
            ChangeForm { project: String::new(), ..form.clone() },
        ] {
            assert_ne!(other.plan_name(), name, "{other:?}");
        }
        let same = ChangeForm { reason: "x".to_owned(), ..form };
        assert_eq!(same.plan_name(), name);
    }
}
