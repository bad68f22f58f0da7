//! The only place that maps errors to statuses; `rlaas_proto::status` makes them. Callers get less detail than logs: no
//! address, no key and no text from the store.

use axum::http::{HeaderMap, StatusCode};
use rlaas_auth::{ApiKeyRefusal, AuthError, KeyRefusal, TokenError};
use rlaas_proto::status::{NO_RULE, invalid, no_rule, not_ready, with_reason};
use rlaas_proto::{OVERLOADED, STORE_UNAVAILABLE};
use tonic::{Code, Status};
use tonic_types::StatusExt;

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
    /// The API key, token or certificate that opened the stream is no longer valid.
    AccessEnded,
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
            Interruption::AccessEnded => Status::unauthenticated("credentials are no longer valid"),
        }
    }
}

/// Returns the status of a call that is refused.
pub fn refused(error: AuthError) -> Status {
    match error {
        AuthError::Token(TokenError::KeysUnavailable)
        | AuthError::ApiKey(ApiKeyRefusal::Key(KeyRefusal::Unavailable)) => {
            not_ready(error.to_string())
        }
        AuthError::Unauthenticated | AuthError::ApiKey(_) | AuthError::Token(_) => {
            Status::unauthenticated(error.to_string())
        }
        AuthError::Forbidden(_) | AuthError::NotLocal(..) | AuthError::Web(_) => {
            Status::permission_denied(error.to_string())
        }
    }
}

/// Returns the status of an administrative call that is refused.
pub fn refused_admin(error: AuthError) -> Status {
    let reason = match error {
        AuthError::Token(TokenError::KeysUnavailable) => "ISSUER_KEYS_UNAVAILABLE",
        AuthError::ApiKey(ApiKeyRefusal::Key(KeyRefusal::Unavailable)) => "API_KEYS_UNAVAILABLE",
        AuthError::Unauthenticated | AuthError::ApiKey(_) | AuthError::Token(_) => {
            "UNAUTHENTICATED"
        }
        AuthError::Forbidden(_) => "ROLE_MISSING",
        AuthError::NotLocal(..) => "NOT_LOCAL",
        AuthError::Web(_) => "WEB_PAGE",
    };
    let status = refused(error);
    with_reason(status.code(), reason, status.message().to_owned())
}

/// Returns the status of a check without a verdict.
pub(crate) fn grpc(error: &CheckError) -> Status {
    let code = match error {
        CheckError::StoreUnavailable(_) => {
            return with_reason(Code::Unavailable, STORE_UNAVAILABLE, text(error));
        }
        CheckError::Descriptor(error) => return invalid(error),
        CheckError::Overloaded => {
            return with_reason(Code::ResourceExhausted, OVERLOADED, text(error));
        }
        CheckError::Expired => Code::DeadlineExceeded,
        CheckError::NoRule => return no_rule(),
        // Deleted since its API key was looked up.
        CheckError::UnknownProject => Code::Unauthenticated,
        CheckError::LongKeys | CheckError::RequestId(RequestIdError::OtherRequest) => {
            return invalid(error);
        }
        CheckError::NoReservation => Code::NotFound,
        CheckError::SettlementForgotten => Code::OutOfRange,
        CheckError::RequestId(_)
        | CheckError::NotPostPaid
        | CheckError::NeedsReservation(_)
        | CheckError::ManyHolders
        | CheckError::NoAtLeast
        | CheckError::NotReservable => Code::FailedPrecondition,
        CheckError::SeveralSlots => {
            return with_reason(Code::FailedPrecondition, "SEVERAL_SLOTS", text(error));
        }
    };
    Status::new(code, text(error))
}

/// Returns `true` for the status of a call that is refused because there are as many projects, keys
/// or rules as there may be: over HTTP that is no overload.
pub(super) fn is_bound(status: &Status) -> bool {
    let info = status.get_details_error_info();
    info.is_some_and(|info| ["BOUND_REACHED", "TOO_MANY_KEYS"].contains(&&*info.reason))
}

/// Returns the HTTP status of an administrative call that failed.
///
/// **Source:** `google/rpc/code.proto`, but for the codes of a state that another call may change.
pub(super) fn http_of_code(code: Code) -> StatusCode {
    match code {
        Code::Ok => StatusCode::OK,
        Code::InvalidArgument | Code::FailedPrecondition | Code::OutOfRange => {
            StatusCode::BAD_REQUEST
        }
        Code::Unauthenticated => StatusCode::UNAUTHORIZED,
        Code::PermissionDenied => StatusCode::FORBIDDEN,
        Code::NotFound => StatusCode::NOT_FOUND,
        Code::AlreadyExists | Code::Aborted => StatusCode::CONFLICT,
        Code::ResourceExhausted | Code::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        Code::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
        Code::Unimplemented => StatusCode::NOT_IMPLEMENTED,
        Code::Cancelled | Code::Unknown | Code::Internal | Code::DataLoss => {
            StatusCode::INTERNAL_SERVER_ERROR
        }
    }
}

/// Returns the text for callers, the same in all protocols.
pub(super) fn text(error: &CheckError) -> String {
    match error {
        CheckError::StoreUnavailable(_) => "store unavailable".to_owned(),
        CheckError::Descriptor(error) => error.to_string(),
        CheckError::Overloaded => "overloaded".to_owned(),
        CheckError::Expired => "deadline exceeded".to_owned(),
        CheckError::NoRule => NO_RULE.to_owned(),
        CheckError::UnknownProject => "the project was deleted".to_owned(),
        CheckError::NotPostPaid
        | CheckError::NeedsReservation(_)
        | CheckError::NoReservation
        | CheckError::SettlementForgotten
        | CheckError::ManyHolders
        | CheckError::SeveralSlots
        | CheckError::NoAtLeast
        | CheckError::LongKeys
        | CheckError::NotReservable => error.to_string(),
        CheckError::RequestId(error) => error.to_string(),
    }
}

/// Returns the HTTP status of a check without a verdict.
pub(super) fn http(error: &CheckError) -> StatusCode {
    match error {
        CheckError::Descriptor(_)
        | CheckError::RequestId(_)
        | CheckError::NotPostPaid
        | CheckError::NeedsReservation(_)
        | CheckError::SettlementForgotten
        | CheckError::ManyHolders
        | CheckError::SeveralSlots
        | CheckError::NoAtLeast
        | CheckError::LongKeys
        | CheckError::NotReservable => StatusCode::BAD_REQUEST,
        CheckError::NoReservation => StatusCode::NOT_FOUND,
        CheckError::NoRule => StatusCode::FORBIDDEN,
        CheckError::UnknownProject => StatusCode::UNAUTHORIZED,
        CheckError::StoreUnavailable(_) | CheckError::Overloaded | CheckError::Expired => {
            StatusCode::SERVICE_UNAVAILABLE
        }
    }
}

#[cfg(test)]
mod tests {
    use rlaas_proto::{ERROR_DOMAIN, NOT_READY};
    use rlaas_telemetry::labels::REQUEST_FIELDS;

    use super::*;
    use crate::algorithm::LimitError;
    use crate::rules::InvalidRequest;
    use crate::rules::descriptors::InvalidDescriptor;

    #[test]
    fn calls_without_a_decision_have_a_reason() {
        let store = CheckError::StoreUnavailable(crate::store::StoreError::Lost);
        let key = AuthError::ApiKey(ApiKeyRefusal::Key(KeyRefusal::Unavailable));
        for (status, code, reason) in [
            (grpc(&store), Code::Unavailable, STORE_UNAVAILABLE),
            (grpc(&CheckError::Overloaded), Code::ResourceExhausted, OVERLOADED),
            (refused(key), Code::Unavailable, NOT_READY),
            (refused(AuthError::Token(TokenError::KeysUnavailable)), Code::Unavailable, NOT_READY),
        ] {
            let info = status.get_details_error_info().expect("an ErrorInfo");
            assert_eq!((status.code(), &*info.reason), (code, reason));
            assert_eq!(info.domain, ERROR_DOMAIN);
        }
        let closing = Status::from(Interruption::ConnectionClosing);
        assert!(closing.details().is_empty(), "nobody has answered");
    }

    #[test]
    fn metrics_have_every_field() {
        let requests = [
            InvalidRequest::UserId,
            InvalidRequest::Resource,
            InvalidRequest::Attributes,
            InvalidRequest::AttributeName,
            InvalidRequest::AttributeValue,
            InvalidRequest::Cost,
            InvalidRequest::Costs,
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
        let pages = ["page_size", "page_token"];
        let requests = requests.into_iter().map(|of| of.violation().path).chain(pages);
        for field in requests.chain(descriptors.into_iter().map(InvalidDescriptor::field)) {
            assert!(REQUEST_FIELDS.contains(&field), "{field}");
        }
    }
}
