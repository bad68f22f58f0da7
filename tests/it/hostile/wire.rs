//! Raw calls: any bytes to any method over gRPC, any request over HTTP.

use prost::bytes::{Buf, BufMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::transport::Channel;
use tonic::{Request, Response, Status, Streaming};

/// Messages as bytes.
#[derive(Clone, Copy, Debug, Default)]
struct BytesCodec;

impl Codec for BytesCodec {
    type Encode = Vec<u8>;
    type Decode = Vec<u8>;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Encoder for BytesCodec {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put_slice(&item);
        Ok(())
    }
}

impl Decoder for BytesCodec {
    type Item = Vec<u8>;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Vec<u8>>, Status> {
        let mut item = vec![0; buffer.remaining()];
        buffer.copy_to_slice(&mut item);
        Ok(Some(item))
    }
}

/// Calls a method with these bytes. Returns the first message of the response.
pub(crate) async fn call(
    channel: &Channel,
    path: &str,
    metadata: &[(String, String)],
    message: Vec<u8>,
) -> Result<Vec<u8>, Status> {
    let mut messages = open(channel, path, metadata, message).await?;
    Ok(messages.message().await?.unwrap_or_default())
}

/// Calls a method with these bytes. A method with one response is a stream of one.
pub(crate) async fn open(
    channel: &Channel,
    path: &str,
    metadata: &[(String, String)],
    message: Vec<u8>,
) -> Result<Streaming<Vec<u8>>, Status> {
    let mut grpc = Grpc::new(channel.clone());
    grpc.ready().await.expect("a connection");
    let mut request = Request::new(message);
    for (name, value) in metadata {
        let name: tonic::metadata::MetadataKey<_> = name.parse().expect("a name");
        request.metadata_mut().append(name, value.parse().expect("a value"));
    }
    let path = path.parse().expect("a path");
    let response = grpc.server_streaming(request, path, BytesCodec).await;
    response.map(Response::into_inner)
}

/// A response over HTTP.
#[derive(Debug)]
pub(super) struct HttpReply {
    pub(super) status: u16,
    pub(super) text: String,
}

/// Sends a request with these lines of its head, and reads until the server closes.
pub(super) async fn send(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    (verb, target): (&str, &str),
    head: &[(String, String)],
    body: &str,
) -> HttpReply {
    let mut stream = stream;
    let mut request = format!("{verb} {target} HTTP/1.1\r\nConnection: close\r\n");
    for (name, value) in head {
        request.extend([name, ": ", value, "\r\n"]);
    }
    request.extend(["Content-Length: ", &body.len().to_string(), "\r\n\r\n", body]);
    stream.write_all(request.as_bytes()).await.expect("a server that reads the request");
    let mut text = String::new();
    stream.read_to_string(&mut text).await.expect("a response");
    let status = text.split(' ').nth(1).and_then(|status| status.parse().ok());
    HttpReply { status: status.unwrap_or_else(|| panic!("{text}")), text }
}

/// Like [`send`], over TCP.
pub(super) async fn send_to(
    address: &str,
    route: (&str, &str),
    head: &[(String, String)],
    body: &str,
) -> HttpReply {
    let stream = TcpStream::connect(address).await.expect("a running server");
    send(stream, route, head, body).await
}

/// Returns the lines of a head.
pub(super) fn head(lines: &[(&str, &str)]) -> Vec<(String, String)> {
    lines.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}
