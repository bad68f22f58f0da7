//! The gRPC API over sockets.

mod auth;
mod batch_and_stream;
mod get_config;
mod hashed_keys;
mod hold_shares;
mod invalid_requests;
mod metadata;
mod money;
mod reports;
mod request_ids;
mod reservations;
mod rule_specs;
mod services;
mod slots;
pub(crate) mod tls;
mod unix_sockets;
mod unmatched;
mod what_is_there;
