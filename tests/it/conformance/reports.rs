//! Reports: costs that are counted after the fact.

super::on_both! { reports }
