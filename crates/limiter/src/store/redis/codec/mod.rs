//! What goes over the wire: names of keys, requests to arguments, replies to decisions, the scripts.

pub(crate) mod call;
pub(crate) mod call_error;
pub(crate) mod keys;
pub(crate) mod request;
pub(crate) mod scripts;
