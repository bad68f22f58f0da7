//! Errors to statuses, in this one place. Callers read less than logs do: no address, no key and
//! no text of the store.

use tonic::Status;

use super::auth::Refusal;
use crate::limiter::CheckError;
use crate::rules::InvalidRequest;
use crate::rules::descriptors::InvalidDescriptor;

/// What ends a call before its answer does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interruption {
    /// Its connection closes.
    Closing,
}

impl From<Interruption> for Status {
    fn from(interruption: Interruption) -> Self {
        match interruption {
            Interruption::Closing => Status::unavailable("connection closing"),
        }
    }
}

impl From<InvalidRequest> for Status {
    fn from(error: InvalidRequest) -> Self {
        Status::invalid_argument(error.to_string())
    }
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Unauthenticated => Status::unauthenticated(refusal.to_string()),
            Refusal::Forbidden(_) => Status::permission_denied(refusal.to_string()),
        }
    }
}

impl From<InvalidDescriptor> for Status {
    fn from(error: InvalidDescriptor) -> Self {
        Status::invalid_argument(error.to_string())
    }
}

impl From<CheckError> for Status {
    fn from(error: CheckError) -> Self {
        match error {
            CheckError::StoreUnavailable(_) => Status::unavailable("store unavailable"),
            CheckError::Descriptor(error) => error.into(),
            CheckError::Overloaded => Status::resource_exhausted("overloaded"),
            CheckError::Expired => Status::deadline_exceeded("deadline exceeded"),
        }
    }
}
