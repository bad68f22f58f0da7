//! Request ids: the same request under the same id takes its units once.

super::on_both! { request_ids }
