//! The fields of the form with the rules of a project.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::digest::{Context, SHA256};
use rlaas_proto::ratelimit::v1::{Rule, RuleMode};

use crate::calls::id_of;
use crate::fields::{FieldError, FormFields};
use crate::rule_words::EVERY_KEY;

/// The form as it was sent, or as it begins.
#[derive(Clone, Debug)]
pub(super) struct ChangeForm {
    /// Id of the project.
    pub(super) project: String,
    /// The rules, with line feeds alone.
    pub(super) text: Arc<str>,
    /// The revision of the project that the visitor has seen.
    pub(super) revision: u64,
    /// Value of the list; may be none of those in it.
    pub(super) publish_as: String,
    /// A number, as typed.
    pub(super) percent: String,
    pub(super) reason: String,
    /// Whether the visitor has seen the plan of this text, way and revision.
    pub(super) has_seen_plan: bool,
}

/// How the rules that change are published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PublishAs {
    /// As the text says.
    Text,
    /// For a share of their keys, in parts per million.
    Share(u32),
}

/// The share that a form begins with, in per cent.
const DEFAULT_PERCENT: &str = "25";

impl ChangeForm {
    pub(super) fn new(project: String, text: String, revision: u64) -> Self {
        Self {
            project,
            text: text.into(),
            revision,
            publish_as: "text".to_owned(),
            percent: DEFAULT_PERCENT.to_owned(),
            reason: String::new(),
            has_seen_plan: false,
        }
    }

    /// Reads the form, whose text may be long.
    pub(super) fn read(fields: &FormFields) -> Result<Self, FieldError> {
        fields.check()?;
        let field = |name| fields.get(name).to_owned();
        let form = Self {
            project: id_of(fields.get("project")).to_owned(),
            // Browsers send both.
            text: fields.get("rules").replace("\r\n", "\n").into(),
            // No project has the highest one.
            revision: fields.get("revision").parse().unwrap_or(u64::MAX),
            publish_as: field("publish_as"),
            percent: field("percent"),
            reason: field("reason"),
            has_seen_plan: false,
        };
        let planned = fields.get("planned");
        let has_seen_plan = !planned.is_empty() && planned == form.plan_name();
        Ok(Self { has_seen_plan, ..form })
    }

    /// Returns how the rules are published.
    ///
    /// # Errors
    ///
    /// What a field must be.
    pub(super) fn publish_as(&self) -> Result<PublishAs, &'static str> {
        match &*self.publish_as {
            "" | "text" => Ok(PublishAs::Text),
            "shadow" => Ok(PublishAs::Share(0)),
            "all" => Ok(PublishAs::Share(EVERY_KEY)),
            "share" => {
                let percent = self.percent.trim().parse::<u32>().ok();
                let percent = percent.filter(|percent| (1..=99).contains(percent));
                let share = percent.map(|percent| PublishAs::Share(percent * 10_000));
                share.ok_or("Share must be a whole number from 1 to 99.")
            }
            _ => Err("Publish must be one of those in the list."),
        }
    }

    /// Returns the name of a plan of this form: another one for another text, way or revision.
    pub(super) fn plan_name(&self) -> String {
        let percent = if self.publish_as == "share" { self.percent.trim() } else { "" };
        let project = &self.project;
        let way = format!("{project}\n{}\n{}\n{percent}\n", self.revision, self.publish_as);
        let mut digest = Context::new(&SHA256);
        digest.update(way.as_bytes());
        digest.update(self.text.as_bytes());
        URL_SAFE_NO_PAD.encode(digest.finish())
    }
}

impl PublishAs {
    /// Sets the share of a rule that changes, or that is enforced for a share already. Rules in another
    /// mode have none.
    pub(super) fn apply(self, rule: Rule, changes: bool) -> Rule {
        let Self::Share(share) = self else { return rule };
        let is_enforced = matches!(rule.mode(), RuleMode::Enforce | RuleMode::Unspecified);
        let has_share = rule.enforce_ppm.is_some_and(|of| of != EVERY_KEY);
        if !is_enforced || !(changes || has_share) {
            return rule;
        }
        Rule { enforce_ppm: Some(share).filter(|share| *share != EVERY_KEY), ..rule }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_set_where_a_rule_changes_or_has_one() {
        let rule = || Rule { name: "a".to_owned(), max_requests: 1, ..Rule::default() };
        let some = 250_000;
        let with = |share| Rule { enforce_ppm: Some(share), ..rule() };
        let all = PublishAs::Share(EVERY_KEY);
        for (way, before, changes, after) in [
            (PublishAs::Text, with(some), true, with(some)),
            (PublishAs::Share(some), rule(), true, with(some)),
            (PublishAs::Share(some), rule(), false, rule()),
            (all, with(some), false, rule()),
            (all, rule(), true, rule()),
        ] {
            assert_eq!(way.apply(before, changes), after, "{way:?}");
        }
        let shadow = Rule { mode: RuleMode::Shadow.into(), ..rule() };
        assert_eq!(PublishAs::Share(some).apply(shadow.clone(), true), shadow);
    }

    #[test]
    fn plans_are_named_by_all_that_matters() {
        let form = ChangeForm::new("shop".to_owned(), "rules: []".to_owned(), 7);
        let name = form.plan_name();
        for other in [
            ChangeForm { text: "rules: [ ]".into(), ..form.clone() },
            ChangeForm { revision: 8, ..form.clone() },
            ChangeForm { publish_as: "all".to_owned(), ..form.clone() },
            ChangeForm { project: String::new(), ..form.clone() },
        ] {
            assert_ne!(other.plan_name(), name, "{other:?}");
        }
        let same = ChangeForm { reason: "x".to_owned(), percent: "7".to_owned(), ..form };
        assert_eq!(same.plan_name(), name);
    }
}
