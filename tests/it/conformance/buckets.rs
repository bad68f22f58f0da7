//! Token bucket, leaky bucket and GCRA.

super::on_both! { buckets }
