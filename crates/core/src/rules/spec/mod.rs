//! Specifications of rules: rules from files, messages or code that are not checked yet.
//!
//! [`RulesSpec::build`] checks all rules and returns a [`RuleSet`](super::RuleSet), or all problems
//! at once. A problem has the path of its field. Only the source of the specification knows files
//! and lines.
//!
//! With the feature `serde` specifications can be deserialized and serialized in the format of
//! rules files, such as YAML: keys in kebab-case, unknown keys refused.
#![cfg_attr(feature = "serde", doc = "```")]
#![cfg_attr(not(feature = "serde"), doc = "```ignore")]
//! use rlaas_core::rules::spec::RulesSpec;
//!
//! let json = r#"{ "rules": [{ "name": "login", "key-by": "ip", "limit": 5, "window": "1m" }] }"#;
//! let spec: RulesSpec = serde_json::from_str(json)?;
//! assert_eq!(spec.build().expect("valid rules").iter().count(), 2);
//!
//! let json = r#"{ "rules": [{ "name": "login", "limit": "many", "window": "1m", "shadow": 5 }]
//! }"#; let problems = serde_json::from_str::<RulesSpec>(json)?.build().expect_err("two problems");
//! assert_eq!(problems[0].field, "rules[0].limit"); assert_eq!(problems[1].to_string(),
//! "rules[0].shadow: must be true or false");
//! # Ok::<(), serde_json::Error>(())
//! ```

mod calendar;
mod code;
mod field;
#[cfg(feature = "serde")]
mod fields;
mod key_by;
mod problem;
mod rate;
mod rule;
mod set;
#[cfg(feature = "serde")]
mod value;

pub use calendar::CalendarSpec;
pub use field::Field;
pub use problem::Problem;
#[doc(hidden)]
pub use rate::Whole;
pub use rate::{RateSpec, StoreFailurePolicy, StoreFailureSpec};
pub use rule::{MatcherSpec, OverrideSpec, RuleSpec};
pub use set::RulesSpec;
// The table is for the program: it grows with every field.
#[cfg(feature = "serde")]
#[doc(hidden)]
pub use {
    fields::{FieldKind, RuleField},
    value::{Value, ValueKind},
};

pub(super) use problem::Problems;
pub(super) use rate::{DebtSpec, HoldSpec, Rate, SHARE};
