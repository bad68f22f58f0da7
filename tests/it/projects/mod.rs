//! Projects of several instances: changed on one, in force on all.

mod api_keys;
mod audit;
mod client;
mod compat;
mod conflict;
mod edits;
mod failover;
mod files;
mod get_config;
mod http;
mod instance;
mod keys;
mod kills;
mod last_use;
mod neighbours;
mod previews;
mod registry;
mod restore;
mod risks;
mod roles;
mod secrets;
mod service;
mod state_dir;
mod top_keys;
mod usage;
mod usage_by_protocol;
