//! The wire format: names of keys, arguments, replies, scripts.

pub(crate) mod call;
pub(crate) mod call_error;
mod fields;
pub(crate) mod keys;
mod plain;
pub(crate) mod request;
pub(crate) mod scripts;
