//! Commands that see and change what a running server knows of keys, rules and projects.
//!
//! Each command calls `ratelimit.admin.v1.AdminService` or `ProjectService`, and prints its response as a
//! text for people, or with `--json` in the JSON mapping of protobuf. Exit codes: 0 done, 1 not
//! confirmed, 2 refused by the server or no response.

mod api_key;
mod audit;
mod call;
mod change;
mod explain;
mod explain_text;
mod inspect;
mod json;
mod keys;
mod overrides;
mod project;
mod reset;
mod rule;
mod selection;
mod tail;
mod text;
mod top;
mod usage;

pub(super) use api_key::{ApiKeyArgs, run as api_key};
pub(super) use audit::{AuditArgs, run as audit};
pub(super) use explain::{ExplainArgs, run as explain};
pub(super) use explain_text::{check_lines, descriptor_lines};
pub(super) use inspect::{InspectArgs, run as inspect};
pub(super) use overrides::{BanArgs, OverrideArgs, UnbanArgs, ban, run as overrides, unban};
pub(super) use project::{ProjectArgs, run as project};
pub(super) use reset::{RefundArgs, ResetArgs, refund, reset};
pub(super) use rule::{RuleArgs, run as rule};
pub(super) use tail::{TailArgs, run as tail};
pub(super) use text::{count, value as shown_value};
pub(super) use top::{TopArgs, run as top};
