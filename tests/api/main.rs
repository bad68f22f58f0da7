//! What clients see, over a socket.

#[path = "../common/mod.rs"]
mod common;

mod hostile;
mod many;
mod services;
