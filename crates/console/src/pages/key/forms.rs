//! The forms of changes of one key.

use maud::{Markup, html};
use rlaas_proto::ratelimit::v1::grant::Kind;

use super::found::{FoundKeys, MetKey};
use super::render::KeyPage;
use crate::change_form::{Input, hidden};
use crate::fields::FormFields;
use crate::page_error::PageError;

/// The fields that name the key, and the change.
pub(super) const SEARCH: &str = "search";
pub(super) const RULE: &str = "of_rule";
pub(super) const KIND: &str = "change";

/// A change of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChangeKind {
    Reset,
    Refund,
    Ban,
    Unban,
    SetLimit,
    ClearLimit,
}

/// A change that was refused, as its visitor typed it.
#[derive(Clone, Debug)]
pub(super) struct ChangeDraft {
    pub(super) fields: FormFields,
    pub(super) error: PageError,
}

impl ChangeKind {
    const ALL: [Self; 6] =
        [Self::Reset, Self::Refund, Self::Ban, Self::Unban, Self::SetLimit, Self::ClearLimit];

    /// Returns the change that a field names.
    pub(super) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Reset => "reset",
            Self::Refund => "refund",
            Self::Ban => "ban",
            Self::Unban => "unban",
            Self::SetLimit => "set-limit",
            Self::ClearLimit => "clear-limit",
        }
    }

    /// Returns `true` for changes of the role admin; the others are of the role operate.
    pub(super) const fn needs_admin(self) -> bool {
        !matches!(self, Self::Reset | Self::Refund)
    }

    const fn title(self) -> &'static str {
        match self {
            Self::Reset => "Reset",
            Self::Refund => "Refund",
            Self::Ban => "Ban",
            Self::Unban => "End the ban",
            Self::SetLimit => "Another limit",
            Self::ClearLimit => "End the other limit",
        }
    }

    const fn hint(self) -> &'static str {
        match self {
            Self::Reset => "As if nothing had been used. Bans and other limits stay.",
            Self::Refund => "Gives back units that were used, up to full.",
            Self::Ban => "Refuses every request of this key until the end.",
            Self::Unban => "Requests count again from now on.",
            Self::SetLimit => "For this key alone, in the window of the rule, until the end.",
            Self::ClearLimit => "The limit of the rule is back from now on.",
        }
    }

    const fn button(self) -> &'static str {
        match self {
            Self::Reset => "Reset this key",
            Self::Refund => "Refund units",
            Self::Ban => "Ban this key",
            Self::Unban => "End the ban now",
            Self::SetLimit => "Set the limit",
            Self::ClearLimit => "Remove the other limit",
        }
    }
}

impl KeyPage {
    /// Shows the forms of the changes that the visitor may make of a key.
    pub(super) fn forms(&self, position: usize, met: &MetKey, found: &FoundKeys) -> Markup {
        let FoundKeys { is_admin, is_operator, .. } = *found;
        // What is not known may be there.
        let has = |is_ban: bool| {
            met.state.as_ref().is_none_or(|state| {
                let grants = state.overrides.iter().filter_map(|one| one.grant.as_ref()?.kind);
                grants.into_iter().any(|kind| is_ban == matches!(kind, Kind::Banned(_)))
            })
        };
        let may_override = is_admin && met.rule.overridable;
        let shown = ChangeKind::ALL.into_iter().filter(|kind| match kind {
            ChangeKind::Reset | ChangeKind::Refund => is_operator,
            ChangeKind::Ban | ChangeKind::SetLimit => may_override,
            ChangeKind::Unban => may_override && has(true),
            ChangeKind::ClearLimit => may_override && has(false),
        });
        html! {
            @if is_operator || may_override {
                div.changes {
                    @for kind in shown { (self.form(position, met, kind)) }
                }
            }
            @if is_admin && !may_override {
                p.hint { "Bans and other limits need a rule with " code { "overridable: true" } "." }
            }
        }
    }

    fn form(&self, position: usize, met: &MetKey, kind: ChangeKind) -> Markup {
        let draft = self.draft.as_ref().filter(|draft| draft.is_of(&met.rule.name, kind));
        let typed = |name| draft.map_or("", |draft| draft.fields.one(name).unwrap_or_default());
        let id = |name: &str| format!("{}-{position}-{name}", kind.name());
        let input = |name, label, example| {
            let (id, value) = (&*id(name), typed(name));
            Input { id, name, label, value, example, ..Input::default() }.render()
        };
        let request_id = draft.map_or("", ChangeDraft::request_id);
        html! {
            details id=(id("form")) open[draft.is_some()] {
                summary { (kind.title()) }
                form.stack method="post" action="key" {
                    (hidden(&self.frame, request_id))
                    input type="hidden" name=(SEARCH) value=(self.search.encoded());
                    input type="hidden" name=(RULE) value=(met.rule.name);
                    p.hint { (kind.hint()) }
                    @match kind {
                        ChangeKind::Refund => (input("units", "Units", "10")),
                        ChangeKind::SetLimit => {
                            (input("limit", "Limit, or \"unlimited\"", "500"))
                            (input("burst", "Most at once, if another number", ""))
                        }
                        _ => {}
                    }
                    @if matches!(kind, ChangeKind::Ban | ChangeKind::SetLimit) {
                        (input("ttl", "Ends after", "12h"))
                    }
                    (input("reason", "Why, for the audit", "ticket 4711"))
                    button.danger[kind == ChangeKind::Ban] name=(KIND) value=(kind.name()) {
                        (kind.button())
                    }
                }
            }
        }
    }
}

impl ChangeDraft {
    fn is_of(&self, rule: &str, kind: ChangeKind) -> bool {
        self.fields.one(KIND) == Ok(kind.name()) && self.fields.one(RULE) == Ok(rule)
    }

    /// Returns the id of the change: a repetition of one whose outcome is not known makes one change.
    fn request_id(&self) -> &str {
        self.error.request_id(&self.fields)
    }
}
