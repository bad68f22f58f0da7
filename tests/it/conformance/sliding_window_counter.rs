//! The sliding window counter.

super::on_both! { sliding_window_counter }
