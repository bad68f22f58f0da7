//! The running service: puts the parts together, and follows what they are made of: the configuration, the
//! certificates, and the rules of a management server.

#[cfg_attr(not(feature = "admin"), path = "no_administration.rs")]
mod administration;
mod certificates;
mod reload;
mod serve;
mod xds;

pub(crate) use serve::serve;
