//! Overrides and bans of single keys.

super::on_both! { overrides }
