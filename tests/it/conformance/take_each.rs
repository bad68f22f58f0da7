//! Hits of one step that are decided independently of each other.

super::on_both! { take_each }
