//! Each hit takes alone.

super::on_both! { take_each }
