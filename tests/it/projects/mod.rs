//! Projects of several instances: changed on one, in force on all.

mod api_keys;
mod instance;
mod registry;
mod state_dir;
