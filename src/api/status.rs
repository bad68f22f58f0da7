//! The only place that maps errors to statuses. Callers get less detail than logs: no
//! address, no key and no text from the store.

use std::collections::HashMap;
use std::fmt::Display;

use axum::http::{HeaderMap, StatusCode};
use rlaas_proto::ERROR_DOMAIN;
use rlaas_proto::ratelimit::v1::check_response::Reason;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

use super::auth::AuthError;
use rlaas_limiter::CheckError;
use rlaas_limiter::idempotency::RequestIdError;

/// An event that ends a call before its response is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interruption {
    /// The connection is closing.
    ConnectionClosing,
    /// The request took too long to arrive.
    RequestTimeout,
    /// The handler panicked.
    Panic,
}

impl Interruption {
    /// Returns the trailers of the interrupted response.
    pub fn trailers(self) -> HeaderMap {
        let mut trailers = HeaderMap::new();
        let _texts_are_valid = Status::from(self).add_header(&mut trailers);
        trailers
    }
}

impl From<Interruption> for Status {
    fn from(interruption: Interruption) -> Self {
        match interruption {
            Interruption::ConnectionClosing => Status::unavailable("connection closing"),
            Interruption::RequestTimeout => {
                Status::deadline_exceeded("request took too long to arrive")
            }
            Interruption::Panic => Status::internal("internal error"),
        }
    }
}

/// Returns the status of an invalid request. The error names the field and what it must be.
pub(super) fn invalid(error: impl Display) -> Status {
    Status::invalid_argument(error.to_string())
}

impl From<AuthError> for Status {
    fn from(error: AuthError) -> Self {
        match error {
            AuthError::Unauthenticated => Status::unauthenticated(error.to_string()),
            AuthError::Forbidden(_) | AuthError::NotLocal(..) | AuthError::Web(_) => {
                Status::permission_denied(error.to_string())
            }
        }
    }
}

/// Returns the status of a check without a verdict.
pub(super) fn grpc(error: &CheckError) -> Status {
    let code = match error {
        CheckError::StoreUnavailable(_) => Code::Unavailable,
        CheckError::Descriptor(error) => return invalid(error),
        CheckError::Overloaded => Code::ResourceExhausted,
        CheckError::Expired => Code::DeadlineExceeded,
        CheckError::NoRule => return no_rule(text(error)),
        CheckError::RequestId(RequestIdError::OtherRequest) => return invalid(error),
        CheckError::RequestId(_) => Code::FailedPrecondition,
    };
    Status::new(code, text(error))
}

fn no_rule(message: String) -> Status {
    let reason = Reason::NoRule.as_str_name();
    let details = ErrorDetails::with_error_info(reason, ERROR_DOMAIN, HashMap::new());
    Status::with_error_details(Code::PermissionDenied, message, details)
}

/// Returns the text for callers, the same in all protocols.
pub(super) fn text(error: &CheckError) -> String {
    match error {
        CheckError::StoreUnavailable(_) => "store unavailable".to_owned(),
        CheckError::Descriptor(error) => error.to_string(),
        CheckError::Overloaded => "overloaded".to_owned(),
        CheckError::Expired => "deadline exceeded".to_owned(),
        CheckError::NoRule => "no rule matches".to_owned(),
        CheckError::RequestId(error) => error.to_string(),
    }
}

/// Returns the HTTP status of a check without a verdict.
pub(super) fn http(error: &CheckError) -> StatusCode {
    match error {
        CheckError::Descriptor(_) | CheckError::RequestId(_) => StatusCode::BAD_REQUEST,
        CheckError::NoRule => StatusCode::FORBIDDEN,
        CheckError::StoreUnavailable(_) | CheckError::Overloaded | CheckError::Expired => {
            StatusCode::SERVICE_UNAVAILABLE
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::algorithm::LimitError;
    use crate::api::config::InvalidPage;
    use crate::rules::InvalidRequest;
    use crate::rules::descriptors::InvalidDescriptor;
    use crate::telemetry::labels::REQUEST_FIELDS;

    #[test]
    fn metrics_have_every_field() {
        let requests = [
            InvalidRequest::UserId,
            InvalidRequest::Resource,
            InvalidRequest::Attributes,
            InvalidRequest::AttributeName,
            InvalidRequest::AttributeValue,
            InvalidRequest::Cost,
            InvalidRequest::RequestId,
        ];
        let index = 0;
        let descriptors = [
            InvalidDescriptor::Domain,
            InvalidDescriptor::Descriptors,
            InvalidDescriptor::Entries { index },
            InvalidDescriptor::Hits { index },
            InvalidDescriptor::Unit { index },
            InvalidDescriptor::Limit { index, error: LimitError::Units },
            InvalidDescriptor::NegativeHits { index },
        ];
        let pages = [InvalidPage::Size, InvalidPage::Token].map(InvalidPage::field);
        let requests = requests.into_iter().map(InvalidRequest::field).chain(pages);
        for field in requests.chain(descriptors.into_iter().map(InvalidDescriptor::field)) {
            assert!(REQUEST_FIELDS.contains(&field), "{field}");
        }
    }
}
