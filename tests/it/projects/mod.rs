//! Projects of several instances: changed on one, in force on all.

mod api_keys;
mod client;
mod http;
mod instance;
mod registry;
mod roles;
mod service;
mod state_dir;
