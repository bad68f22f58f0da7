//! The wire format: names of keys, arguments, replies, scripts.

pub(crate) mod call;
pub(crate) mod call_error;
pub(crate) mod keys;
pub(crate) mod request;
pub(crate) mod scripts;
