//! Changed rules and the states that exist.

super::on_both! { changed_rules }
