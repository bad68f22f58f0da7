//! What HTTP clients see, over a socket.

mod check;
mod client;
mod early;
mod embedded;
mod envoy;
mod guard;
mod headers;
mod hostile;
mod openapi;
mod readme;
mod schema;
mod schemathesis;
mod seed;
