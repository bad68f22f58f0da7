//! Projects of several instances: changed on one, in force on all.

mod instance;
mod registry;
mod state_dir;
