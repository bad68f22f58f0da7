//! What is promised over any span.

super::on_both! { promise }
