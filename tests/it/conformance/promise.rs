//! Guarantees over any period of time.

super::on_both! { promise }
