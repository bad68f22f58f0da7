//! A rule that is changed meets the state that is there.

super::on_both! { changed_rules }
