//! Random steps, answered as the memory store answers them.

super::on_both! { against_memory }
