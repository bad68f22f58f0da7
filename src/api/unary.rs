//! Calls of methods with one request and one response, without what tonic's server keeps for streams.
//!
//! A request that arrives as one whole message is decoded where it lies, and its response is encoded
//! once. Every other request goes to tonic's server, frame by frame as it came: limits of sizes,
//! compression, messages in parts, and all errors before the method are tonic's.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::HttpBody;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use futures_util::stream;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Bytes, Frame};
use prost::Message;
use tonic::Status;
use tonic::body::Body;
use tonic::metadata::MetadataMap;
use tower::{BoxError, Service};

/// Length of what is before a message: whether it is compressed, and its length.
const PREFIX: usize = 5;

const GRPC_ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");

/// Calls `method`, or the server that has it.
pub(super) async fn unary<B, Q, A, F, S>(
    request: Request<B>,
    max_message: usize,
    mut server: S,
    method: impl FnOnce(tonic::Request<Q>) -> F,
) -> Result<Response<Body>, Infallible>
where
    B: HttpBody<Data = Bytes, Error = BoxError> + Unpin,
    Q: Message + Default,
    A: Message,
    F: Future<Output = Result<tonic::Response<A>, Status>>,
    S: Service<Request<ReplayedBody<B>>, Response = Response<Body>, Error = Infallible>,
{
    let (parts, body) = request.into_parts();
    let mut body = ReplayedBody { read: [None, None], rest: body };
    let encoding = parts.headers.get(GRPC_ENCODING);
    let message = if encoding.is_none_or(|encoding| encoding == "identity") {
        body.read_message(max_message).await
    } else {
        None
    };
    let Some(message) = message else {
        return server.call(Request::from_parts(parts, body)).await;
    };
    drop(body);
    let metadata = MetadataMap::from_headers(parts.headers);
    let response = method(tonic::Request::from_parts(metadata, parts.extensions, message)).await;
    Ok(response.map_or_else(Status::into_http, respond))
}

fn respond(response: tonic::Response<impl Message>) -> Response<Body> {
    let (metadata, message, extensions) = response.into_parts();
    let mut trailers = HeaderMap::with_capacity(1);
    trailers.insert(Status::GRPC_STATUS, HeaderValue::from_static("0"));
    let frames = [Frame::data(framed(&message)), Frame::trailers(trailers)];
    let frames = stream::iter(frames.map(Ok::<_, Infallible>));
    let mut response = Response::new(Body::new(StreamBody::new(frames)));
    *response.headers_mut() = metadata.into_headers();
    let content_type = HeaderValue::from_static("application/grpc");
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    *response.extensions_mut() = extensions;
    response
}

fn framed(message: &impl Message) -> Bytes {
    let mut frame = encoded_after(PREFIX, message);
    let length = u32::try_from(frame.len() - PREFIX).expect("responses are smaller than 4 GiB");
    frame[1..PREFIX].copy_from_slice(&length.to_be_bytes());
    frame.into()
}

/// Encodes a message after as many zeros as `prefix`.
pub(super) fn encoded_after(prefix: usize, message: &impl Message) -> Vec<u8> {
    // A slice takes an integer byte by byte without a call; a vector would ask each time whether it has to grow.
    let mut bytes = vec![0; prefix + message.encoded_len()];
    message.encode(&mut &mut bytes[prefix..]).expect("it has the length of the message");
    bytes
}

/// Decodes an uncompressed message that is whole.
fn decode<M: Message + Default>(data: &[u8], max_message: usize) -> Option<M> {
    let (&[0, ref length @ ..], message) = data.split_first_chunk::<PREFIX>()? else { return None };
    let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
    if length != message.len() || length > max_message {
        return None;
    }
    M::decode(message).ok()
}

fn is_empty(frame: &Frame<Bytes>) -> bool {
    frame.data_ref().is_some_and(Bytes::is_empty)
}

/// A frame that was read, or the error in its place.
type ReadFrame = Result<Frame<Bytes>, BoxError>;

/// A body whose first frames may have been read before. They come again.
pub(super) struct ReplayedBody<B> {
    read: [Option<ReadFrame>; 2],
    rest: B,
}

impl<B: HttpBody<Data = Bytes, Error = BoxError> + Unpin> ReplayedBody<B> {
    /// Reads a message that is the first frame, and all of the body.
    async fn read_message<M: Message + Default>(&mut self, max_message: usize) -> Option<M> {
        let [first, second] = &mut self.read;
        *first = self.rest.frame().await;
        let data = first.as_ref()?.as_ref().ok()?.data_ref()?;
        let message = decode(data, max_message)?;
        if !self.rest.is_end_stream() {
            *second = self.rest.frame().await;
        }
        // Some clients end a body by a frame without data.
        second.take_if(|frame| frame.as_ref().is_ok_and(is_empty) && self.rest.is_end_stream());
        second.is_none().then_some(message)
    }
}

impl<B: HttpBody<Data = Bytes, Error = BoxError> + Unpin> HttpBody for ReplayedBody<B> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<ReadFrame>> {
        match self.read.iter_mut().find_map(Option::take) {
            Some(frame) => Poll::Ready(Some(frame)),
            None => Pin::new(&mut self.rest).poll_frame(cx),
        }
    }
}
