//! Rate limiting as a service: may this request pass?

pub mod clock;
