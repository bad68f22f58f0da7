//! The commands and the configuration, as their users meet them.

#[path = "../common/mod.rs"]
mod common;

mod commands;
mod configuration;
