//! HTTP/2 frame by frame, for input that no regular client sends, and for the exact order of the
//! frames of a server.

#![expect(missing_docs, reason = "frames, flags and fields have the names of RFC 9113")]

use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

pub const DATA: u8 = 0x0;
pub const HEADERS: u8 = 0x1;
pub const RST_STREAM: u8 = 0x3;
pub const SETTINGS: u8 = 0x4;
pub const PING: u8 = 0x6;
pub const GOAWAY: u8 = 0x7;
pub const WINDOW_UPDATE: u8 = 0x8;
pub const CONTINUATION: u8 = 0x9;

pub const ACK: u8 = 0x1;
pub const END_STREAM: u8 = 0x1;
pub const END_HEADERS: u8 = 0x4;

/// The setting for the flow-control window of streams: how many bytes of each response may be in
/// flight.
pub const INITIAL_WINDOW_SIZE: u16 = 0x4;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const TIMEOUT: Duration = Duration::from_secs(20);

/// One frame.
///
/// **Source:** RFC 9113, section 4.1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    pub kind: u8,
    pub flags: u8,
    pub stream: u32,
    pub payload: Vec<u8>,
}

impl Frame {
    /// Creates a frame.
    pub fn new(kind: u8, flags: u8, stream: u32, payload: impl Into<Vec<u8>>) -> Self {
        Self { kind, flags, stream, payload: payload.into() }
    }

    /// Returns the encoded frame.
    pub fn to_bytes(&self) -> Vec<u8> {
        let length = u32::try_from(self.payload.len()).expect("a short frame").to_be_bytes();
        let head = [length[1], length[2], length[3], self.kind, self.flags];
        [&head[..], &self.stream.to_be_bytes(), &self.payload].concat()
    }
}

/// A connection on which a test controls every byte.
#[derive(Debug)]
pub struct RawHttp2(TcpStream);

impl RawHttp2 {
    /// Connects, sends the preface with these settings, and waits for the settings of the server.
    pub async fn connect(address: &str, settings: &[(u16, u32)]) -> Self {
        let stream = TcpStream::connect(address).await.expect("a running server");
        let mut connection = Self(stream);
        let settings = settings
            .iter()
            .flat_map(|(name, value)| [&name.to_be_bytes()[..], &value.to_be_bytes()].concat());
        connection.send_bytes(PREFACE).await.expect("a server that listens");
        let settings_frame = Frame::new(SETTINGS, 0, 0, settings.collect::<Vec<u8>>());
        connection.send(&settings_frame).await.expect("a server that listens");
        let answer = connection.next().await.expect("the settings of the server");
        assert_eq!(answer.kind, SETTINGS);
        connection.send(&Frame::new(SETTINGS, ACK, 0, [])).await.expect("a server that listens");
        connection
    }

    /// Sends bytes, which need not be a frame.
    pub async fn send_bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all(bytes).await
    }

    /// Sends a frame.
    pub async fn send(&mut self, frame: &Frame) -> io::Result<()> {
        self.send_bytes(&frame.to_bytes()).await
    }

    /// Starts a gRPC call to this path: sends the headers only. The test sends the message itself.
    pub async fn call(&mut self, stream: u32, path: &str) -> io::Result<()> {
        self.send(&Frame::new(HEADERS, END_HEADERS, stream, headers(path))).await
    }

    /// Reads the next frame; an error means the end of the connection.
    pub async fn next(&mut self) -> io::Result<Frame> {
        let mut head = [0; 9];
        let mut read = async || {
            self.0.read_exact(&mut head).await?;
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
            let mut payload = vec![0; length as usize];
            self.0.read_exact(&mut payload).await?;
            let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
            Ok(Frame::new(head[3], head[4], stream, payload))
        };
        timeout(TIMEOUT, read())
            .await
            .unwrap_or_else(|_elapsed| panic!("neither a frame nor the end of the connection"))
    }

    /// Reads up to the next frame of this kind, and answers pings.
    pub async fn next_of(&mut self, kind: u8) -> io::Result<Frame> {
        loop {
            let frame = self.next().await?;
            if frame.kind == kind {
                return Ok(frame);
            }
            if frame.kind == PING && frame.flags & ACK == 0 {
                self.send(&Frame::new(PING, ACK, 0, frame.payload)).await?;
            }
        }
    }

    /// Reads to the end of the connection, without answering.
    pub async fn closed(&mut self) {
        while self.next().await.is_ok() {}
    }
}

/// Returns the header block of a gRPC call: literals without indexing.
///
/// **Source:** RFC 7541, section 6.2.2.
pub fn headers(path: &str) -> Vec<u8> {
    let fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "test"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ];
    fields.iter().flat_map(|(name, value)| header(name, value)).collect()
}

/// Encodes one header: a literal without indexing, both lengths below 127.
pub fn header(name: &str, value: &str) -> Vec<u8> {
    let length = |text: &str| u8::try_from(text.len()).ok().filter(|length| *length < 127);
    let (name_length, value_length) =
        (length(name).expect("a short name"), length(value).expect("a short value"));
    [&[0, name_length], name.as_bytes(), &[value_length], value.as_bytes()].concat()
}

/// Encodes a gRPC message: no compression, length, bytes.
pub fn message(bytes: &[u8]) -> Vec<u8> {
    let length = u32::try_from(bytes.len()).expect("a short message");
    [&[0][..], &length.to_be_bytes(), bytes].concat()
}
