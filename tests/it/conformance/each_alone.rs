//! Hits of one step that are decided independently of each other.

super::on_both! { each_alone }
