//! A call of the service in the same process: the messages of gRPC without a connection. Those of a stream
//! are sent as events.
//!
//! **Source:** gRPC over HTTP/2, "Length-Prefixed-Message".
//!
//! **Source:** WHATWG HTML, "Server-sent events".

use std::future::poll_fn;
use std::pin::Pin;

use axum::body::{Body, Bytes, HttpBody};
use axum::http::{Extensions, HeaderMap, HeaderValue, Request, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use prost::Message;
use prost_reflect::{DynamicMessage, MessageDescriptor, MethodDescriptor};
use rlaas_proto::WARNING;
use tonic::Status;
use tower::Service;

use super::unless_large;
use crate::api::verdict_headers::VerdictHeaders;
use crate::json_messages;

/// Length of the prefix of a message: a flag for compression, and the length as four bytes.
const PREFIX: usize = 5;

/// A generated service of this process.
pub(super) trait GrpcService:
    Service<Request<Body>, Response = axum::http::Response<tonic::body::Body>, Future: Send> + Send
{
}

impl<S> GrpcService for S where
    S: Service<Request<Body>, Response = axum::http::Response<tonic::body::Body>, Future: Send>
        + Send
{
}

/// A call that returns messages one by one.
pub(super) struct InProcessCall {
    body: tonic::body::Body,
    /// Bytes that were received and are not a whole message yet.
    pending: Vec<u8>,
    /// Length of the last message.
    pub(super) received: usize,
    output: MessageDescriptor,
    /// Warning for the administrator.
    pub(super) warning: Option<HeaderValue>,
    /// Those of the verdict, if there is one.
    pub(super) headers: HeaderMap,
}

impl InProcessCall {
    /// Calls a method with a message from [`framed`]. The extensions of the request have its caller.
    ///
    /// # Errors
    ///
    /// The status, if the call ends before the first response.
    pub(super) async fn start<S>(
        mut service: S,
        method: &MethodDescriptor,
        framed: Bytes,
        extensions: Extensions,
    ) -> Result<Self, Status>
    where
        S: GrpcService,
    {
        let path = format!("/{}/{}", method.parent_service().full_name(), method.name());
        let mut request = Request::post(path).body(Body::from(framed));
        let request = request.as_mut().map_err(|_| Status::internal("internal error"))?;
        let mut request = std::mem::take(request);
        let grpc = HeaderValue::from_static("application/grpc");
        request.headers_mut().insert(header::CONTENT_TYPE, grpc);
        *request.extensions_mut() = extensions;
        let Ok(response) = service.call(request).await else {
            return Err(Status::internal("internal error"));
        };
        let (mut head, body) = response.into_parts();
        let headers = head.extensions.remove::<VerdictHeaders>();
        let headers = headers.map(|headers| headers.0).unwrap_or_default();
        let warning = head.headers.get(WARNING).cloned();
        match Status::from_header_map(&head.headers) {
            Some(status) if status.code() != tonic::Code::Ok => Err(status),
            _ => Ok(Self {
                body,
                pending: Vec::new(),
                received: 0,
                output: method.output(),
                warning,
                headers,
            }),
        }
    }

    /// Returns the next message; `None` after the last one.
    ///
    /// # Errors
    ///
    /// The status with which the call ends, unless it is `OK`.
    pub(super) async fn next(&mut self) -> Result<Option<DynamicMessage>, Status> {
        loop {
            if let Some(message) = self.take_message() {
                self.received = message.len();
                let output = self.output.clone();
                let decode = move || DynamicMessage::decode(output, &message[..]);
                let message = unless_large(self.received, decode).await;
                return message.map(Some).map_err(|_| Status::internal("internal error"));
            }
            let frame = poll_fn(|cx| Pin::new(&mut self.body).poll_frame(cx)).await;
            let Some(frame) = frame else { return Ok(None) };
            let frame = frame?;
            match frame.into_data() {
                Ok(data) => self.pending.extend_from_slice(&data),
                Err(frame) => {
                    let status = frame.trailers_ref().and_then(Status::from_header_map);
                    if let Some(status) = status.filter(|status| status.code() != tonic::Code::Ok) {
                        return Err(status);
                    }
                }
            }
        }
    }

    /// Takes a whole message out of the received bytes.
    fn take_message(&mut self) -> Option<Vec<u8>> {
        let (prefix, rest) = self.pending.split_first_chunk::<PREFIX>()?;
        let length = u32::from_be_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]);
        let length = usize::try_from(length).ok()?;
        let message = rest.get(..length)?.to_vec();
        self.pending.drain(..PREFIX + length);
        Some(message)
    }
}

/// Returns a message with its prefix.
pub(super) fn framed(message: &DynamicMessage) -> Bytes {
    let message = message.encode_to_vec();
    let mut framed = vec![0; 1];
    framed.extend(u32::try_from(message.len()).unwrap_or(u32::MAX).to_be_bytes());
    framed.extend(message);
    framed.into()
}

/// Returns the response of a call that streams. Each message is the data of one event; the text of a
/// status that ends the stream is the data of an event `error`.
pub(super) fn response(call: InProcessCall) -> Response {
    let events = stream::unfold(Some(call), |call| async move {
        let mut call = call?;
        let (event, next) = match call.next().await {
            Ok(Some(message)) => (event("message", &json_messages::write(&message)), Some(call)),
            Ok(None) => return None,
            Err(status) => (event("error", &error(&status)), None),
        };
        Some((Ok::<_, std::convert::Infallible>(event), next))
    });
    let content_type = HeaderValue::from_static("text/event-stream");
    (StatusCode::OK, [(header::CONTENT_TYPE, content_type)], Body::from_stream(events))
        .into_response()
}

/// Returns an event. JSON without white space has no line breaks.
fn event(name: &str, json: &str) -> String {
    format!("event: {name}\ndata: {json}\n\n")
}

fn error(status: &Status) -> String {
    serde_json::json!({ "code": i32::from(status.code()), "message": status.message() }).to_string()
}
