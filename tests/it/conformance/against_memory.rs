//! Random steps, compared with the memory store.

super::on_both! { against_memory }
