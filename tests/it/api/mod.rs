//! What clients see, over a socket.

mod auth;
mod get_config;
mod hostile;
mod many;
mod metadata;
mod services;
mod sockets;
mod specs;
mod tls;
mod unmatched;
