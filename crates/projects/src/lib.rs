//! Projects: tenants of one service, each with API keys and rules of its own, which change while the
//! service runs.
//!
//! The types here are what is stored of a project, and the changes that are made to it. They are
//! pure: each change is given the time and random numbers. Only [`registry`] knows where projects
//! are stored; nothing here knows who changes them.

mod etag;
mod history;
mod key;
mod keyring;
mod project;
pub mod registry;
mod rules;
mod secret;
pub mod usage;

pub use etag::Etag;
pub use history::{History, Revision, RevisionNumber, differences};
pub use key::{ApiKey, ApiKeyError, ApiKeyState, KeyDigest, NewKey};
pub(crate) use keyring::KeyRequests;
pub use keyring::{KeyUse, Keyring};
pub use project::{InvalidProject, Project, ProjectUnmatched};
pub use rules::{Others, ProjectRules, RuleChange, RuleRecord, RuleWriteError, WriteStamp};
pub use secret::{ApiKeySecret, Environment};
