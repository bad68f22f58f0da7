//! What is known of a server: whether it answers, whether it decides, and what its clock shows.

pub(crate) mod breaker;
pub(crate) mod clock;
pub(crate) mod monitor;
