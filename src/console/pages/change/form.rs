//! The fields of the form with the rules of a project.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::digest::{Context, SHA256};

use crate::console::calls::id_of;
use crate::console::fields::{FieldError, FormFields};
use crate::rules::spec::{Field, RuleSpec};
use crate::rules::{EnforcedShare, RuleMode};

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
    /// For a share of their keys.
    Share(EnforcedShare),
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
        let field = |name| fields.one(name).map(str::to_owned);
        let form = Self {
            project: id_of(fields.one("project")?).to_owned(),
            // Browsers send both.
            text: fields.one("rules")?.replace("\r\n", "\n").into(),
            // No project has the highest one.
            revision: fields.one("revision")?.parse().unwrap_or(u64::MAX),
            publish_as: field("publish_as")?,
            percent: field("percent")?,
            reason: field("reason")?,
            has_seen_plan: false,
        };
        let planned = fields.one("planned")?;
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
            "shadow" => Ok(PublishAs::Share(EnforcedShare::new(0).unwrap_or_default())),
            "all" => Ok(PublishAs::Share(EnforcedShare::ALL)),
            "share" => {
                let percent = self.percent.trim().parse::<u32>().ok();
                let percent = percent.filter(|percent| (1..=99).contains(percent));
                let share = percent.and_then(|percent| EnforcedShare::new(percent * 10_000));
                share.map(PublishAs::Share).ok_or("Share must be a whole number from 1 to 99.")
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
    pub(super) fn apply(self, spec: RuleSpec, changes: bool) -> RuleSpec {
        let Self::Share(share) = self else { return spec };
        let is_enforced = match spec.mode.value() {
            Some(mode) => *mode == RuleMode::Enforce,
            None => spec.shadow.value() != Some(&true),
        };
        let has_share = spec.enforce.value().is_some_and(|of| *of != EnforcedShare::ALL);
        if !is_enforced || !(changes || has_share) {
            return spec;
        }
        let enforce = if share == EnforcedShare::ALL { Field::Unset } else { Field::Set(share) };
        RuleSpec { enforce, ..spec }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::Rule;
    use std::time::Duration;

    #[test]
    fn shares_are_set_where_a_rule_changes_or_has_one() {
        let rule = || Rule::gcra("a").limit(1).per(Duration::from_secs(1));
        let some = EnforcedShare::new(250_000).expect("a share");
        let with = |share| RuleSpec { enforce: Field::Set(share), ..rule() };
        let all = PublishAs::Share(EnforcedShare::ALL);
        for (way, before, changes, after) in [
            (PublishAs::Text, with(some), true, with(some)),
            (PublishAs::Share(some), rule(), true, with(some)),
            (PublishAs::Share(some), rule(), false, rule()),
            (all, with(some), false, rule()),
            (all, rule(), true, rule()),
        ] {
            assert_eq!(way.apply(before, changes), after, "{way:?}");
        }
        let shadow = RuleSpec { mode: Field::Set(RuleMode::Shadow), ..rule() };
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
