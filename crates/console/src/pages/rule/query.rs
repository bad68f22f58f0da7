//! The rule, and how a visitor looks at it: the fields of the query.

use rlaas_proto::ratelimit::admin::v1::TopKind;

use crate::fields::{FormFields, Link};
use crate::page_error::PageError;
use crate::pages::now::{of_field, of_instance};

/// A rule, and how a visitor looks at it.
#[derive(Clone, Debug)]
pub(super) struct RuleQuery {
    /// Empty or `_`: that of the rules in files.
    pub(super) project: String,
    pub(super) name: String,
    /// Whether the decisions are those of this instance.
    pub(super) of_instance: bool,
    /// The keys that are shown.
    pub(super) top: TopKind,
    /// The time of their counts, in seconds.
    pub(super) window: i64,
}

/// The kinds of keys, with their fields and names. The first is the default.
pub(super) const KINDS: [(TopKind, &str, &str); 3] = [
    (TopKind::Denied, "denied", "Refused most"),
    (TopKind::NearLimit, "near", "Near the limit"),
    (TopKind::Used, "used", "Use most"),
];
/// The times of counts, with their fields and names. The first is the default.
pub(super) const WINDOWS: [(i64, &str, &str); 2] =
    [(3_600, "1h", "Last hour"), (900, "15m", "Last 15 minutes")];

impl RuleQuery {
    pub(super) fn parse(fields: &FormFields) -> Result<Self, PageError> {
        fields.check()?;
        let invalid = |problem: &str| PageError::invalid(problem);
        let name = fields.get("name").to_owned();
        if name.is_empty() {
            return Err(invalid("name must be the name of a rule"));
        }
        let top = one_of(&KINDS, fields.get("top"));
        let window = one_of(&WINDOWS, fields.get("window"));
        Ok(Self {
            project: fields.get("project").to_owned(),
            name,
            of_instance: of_instance(fields.get("of"))?,
            top: top.ok_or_else(|| invalid("top must be denied, near or used"))?,
            window: window.ok_or_else(|| invalid("window must be 1h or 15m"))?,
        })
    }

    /// Returns the link to the page, as it is looked at.
    pub(super) fn link(&self) -> Link {
        // The defaults are left out.
        let link = Link::to("rule").with("project", &self.project).with("name", &self.name);
        let link = link.with("of", of_field(self.of_instance));
        let link = link.with("top", field_of(&KINDS, self.top));
        link.with("window", field_of(&WINDOWS, self.window))
    }
}

fn one_of<T: Copy>(all: &[(T, &str, &str)], field: &str) -> Option<T> {
    if field.is_empty() {
        return all.first().map(|(value, ..)| *value);
    }
    all.iter().find(|(_, of, _)| *of == field).map(|(value, ..)| *value)
}

/// Returns the field of a value; empty for the default.
fn field_of<'a, T: Copy + PartialEq>(all: &[(T, &'a str, &str)], value: T) -> &'a str {
    let field = all.iter().skip(1).find(|(of, ..)| *of == value).map(|(_, field, _)| *field);
    field.unwrap_or_default()
}
