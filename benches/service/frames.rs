//! A load generator for unary gRPC calls that is never the ceiling: prepared HTTP/2 frames over
//! plain blocking TCP, with one thread per connection.
//!
//! A closed loop keeps a number of calls in flight on each connection; their latency counts from
//! the write. An open loop sends calls by a schedule that all connections share; their latency
//! counts from the time at which they were due, however late they were sent. A further thread
//! sends the calls that become due while no response comes.
//!
//! What it relies on: the server allows the number of streams and a message of 16 KiB (its window
//! for the connection is obeyed, those for single streams and its settings are not read); it
//! honours `SETTINGS_HEADER_TABLE_SIZE` 0, so that no header block depends on an earlier one; and
//! it puts `grpc-status` in the first frame of the trailers.

#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    clippy::disallowed_methods,
    reason = "a load of minutes at most, in real time"
)]

use std::io::{ErrorKind, Read, Result, Write};
use std::time::{Duration, Instant};
use std::{mem, net::TcpStream, sync::Mutex, thread};

/// Calls of an open loop that may wait for their response at once, over all connections.
const MAX_OUTSTANDING: usize = 60_000;
/// Calls of a connection whose start is remembered. The run fails if one has no response while as
/// many follow.
const PLACES: usize = 1 << 20;
/// Starts a connection: SETTINGS (`HEADER_TABLE_SIZE` 0, `INITIAL_WINDOW_SIZE` 2^31 - 1), and
/// `WINDOW_UPDATE` to 2^31 - 1.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\
    \0\0\x0c\x04\0\0\0\0\0\0\x01\0\0\0\0\0\x04\x7f\xff\xff\xff\
    \0\0\x04\x08\0\0\0\0\0\x7f\xff\0\0";

/// What to send, where and how fast.
pub(crate) struct FrameLoad {
    /// Host and port.
    pub(crate) address: String,
    /// Such as `/package.Service/Method`.
    pub(crate) path: String,
    pub(crate) connections: usize,
    /// Calls in flight on each connection: always in a closed loop, at most in an open loop. The
    /// server must allow as many; most allow 100.
    pub(crate) streams: usize,
    pub(crate) duration: Duration,
    /// Calls per second of an open loop, over all connections. None is a closed loop.
    pub(crate) rate: Option<f64>,
    /// The message, without the prefix of gRPC.
    pub(crate) body: Vec<u8>,
    /// Where in the message an id of eleven digits is overwritten.
    pub(crate) id_offset: usize,
    /// Calls have the ids from 0 to this, exclusive, in turn.
    pub(crate) ids: u64,
}

/// The responses. It lacks the calls of an open loop that were due and not sent before the end.
#[derive(Default)]
pub(crate) struct Report {
    /// Latencies in microseconds, ascending, of the calls with the status OK, of those with
    /// `RESOURCE_EXHAUSTED`, and of those with any other or none, or reset.
    pub(crate) latencies: [Vec<u32>; 3],
    /// Time from the start to the last response.
    pub(crate) elapsed: Duration,
}

/// Runs the load to the last response. Fails if a connection does, and with `WouldBlock` if one is
/// silent for ten seconds.
pub(crate) fn run(load: &FrameLoad) -> Result<Report> {
    let next_call = Mutex::new(0);
    let open = |_| Connection::open(load, &next_call);
    let all: Vec<_> = (0..load.connections).map(open).collect::<Result<_>>()?;
    let start = Instant::now();
    thread::scope(|scope| {
        let spawn = |of| scope.spawn(move || pump(of, start));
        let pumps: Vec<_> = all.iter().map(spawn).collect();
        while load.rate.is_some() && start.elapsed() < load.duration {
            for connection in &all {
                with(connection, |it| it.send(start.elapsed()))?;
                // Between two looks at the schedule while no response comes.
                thread::sleep(Duration::from_micros(50));
            }
        }
        for connection in &all {
            // The answer to a PING wakes a thread that waits without a call in flight.
            with(connection, |it| it.out.extend(frame(6, 0, &[0; 8])));
            with(connection, |it| it.send(start.elapsed()))?;
        }
        let mut ends = pumps.into_iter().map(thread::ScopedJoinHandle::join);
        ends.try_for_each(|end| end.expect("a pump does not panic"))
    })?;
    let mut sum = Report::default();
    for connection in &all {
        let report = with(connection, |it| mem::take(&mut it.report));
        sum.elapsed = sum.elapsed.max(report.elapsed);
        for (all, latencies) in sum.latencies.iter_mut().zip(report.latencies) {
            all.extend(latencies);
            all.sort_unstable();
        }
    }
    Ok(sum)
}

/// Sends calls, and further ones whenever responses have come, until the run is over.
fn pump(connection: &Mutex<Connection>, start: Instant) -> Result<()> {
    let mut socket = with(connection, |it| it.socket.try_clone())?;
    let (mut buffer, mut filled) = (vec![0; 256 * 1024], 0);
    while !with(connection, |it| it.send(start.elapsed()))? {
        let count = socket.read(&mut buffer[filled..])?;
        if count == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        let (bytes, now) = (&buffer[..filled + count], start.elapsed());
        let rest = with(connection, |it| it.take_frames(bytes, now));
        buffer.copy_within(filled + count - rest..filled + count, 0);
        filled = rest;
    }
    Ok(())
}

fn with<T, R>(of: &Mutex<T>, action: impl FnOnce(&mut T) -> R) -> R {
    action(&mut of.lock().expect("no thread has panicked"))
}

struct Connection<'a> {
    load: &'a FrameLoad,
    /// The number of the next call, counted over all connections.
    next_call: &'a Mutex<u64>,
    socket: TcpStream,
    /// HEADERS and DATA of a call.
    call: [Vec<u8>; 2],
    /// Frames to write.
    out: Vec<u8>,
    /// When each call started, in nanoseconds after the start of the run, by the call's number
    /// modulo [`PLACES`]; zero if it has its response.
    started: Vec<u64>,
    /// Calls so far. The stream of a call is twice its number, plus one.
    calls: u32,
    /// Bytes that the server lets the connection send.
    send_window: i64,
    /// Bytes received since their window was opened.
    received: u32,
    report: Report,
}

impl<'a> Connection<'a> {
    fn open(load: &'a FrameLoad, next_call: &'a Mutex<u64>) -> Result<Mutex<Self>> {
        let socket = TcpStream::connect(&load.address)?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(Duration::from_secs(10)))?;
        Ok(Mutex::new(Self {
            load,
            next_call,
            socket,
            call: prepared_call(load),
            out: PREFACE.to_vec(),
            started: vec![0; PLACES],
            calls: 0,
            send_window: 65_535,
            received: 0,
            report: Report::default(),
        }))
    }

    /// Sends as many calls as may be in flight. Returns `true` if the run is over.
    fn send(&mut self, now: Duration) -> Result<bool> {
        let (load, is_late) = (self.load, now >= self.load.duration);
        let (now, gap) = (now.as_nanos() as u64, load.rate.map(|rate| 1e9 / rate));
        let ended: usize = self.report.latencies.iter().map(Vec::len).sum();
        let in_flight = self.calls as usize - ended;
        let limit = load.streams.min(MAX_OUTSTANDING / load.connections);
        let window = self.send_window.max(0) as usize / (5 + load.body.len());
        let room = u64::from(!is_late) * limit.saturating_sub(in_flight).min(window) as u64;
        let due = gap.map_or(u64::MAX, |gap| (now as f64 / gap) as u64);
        let end = |next: u64| next + room.min(due.saturating_sub(next));
        let first = with(self.next_call, |next| mem::replace(next, end(*next)));
        for number in first..end(first) {
            let started = &mut self.started[self.calls as usize % PLACES];
            *started = gap.map_or(now, |gap| ((number + 1) as f64 * gap) as u64);
            for frame in &self.call {
                let at = self.out.len() + 5;
                self.out.extend_from_slice(frame);
                self.out[at..at + 4].copy_from_slice(&(self.calls * 2 + 1).to_be_bytes());
            }
            let id_at = self.out.len() - load.body.len() + load.id_offset;
            write!(&mut self.out[id_at..], "{:011}", number % load.ids)?;
            self.calls += 1;
            self.send_window -= 5 + load.body.len() as i64;
        }
        self.socket.write_all(&self.out)?;
        self.out.clear();
        Ok(is_late && in_flight == 0)
    }

    /// Takes the whole frames. Returns the length of the rest.
    fn take_frames(&mut self, mut rest: &[u8], now: Duration) -> usize {
        while let Some(head) = rest.get(..9) {
            let end = 9 + number(&head[..3]) as usize;
            let Some(data) = rest.get(9..end) else { break };
            rest = &rest[end..];
            self.received += u32::from(head[3] == 0) * data.len() as u32;
            match (head[3], head[4] & 1) {
                // DATA or HEADERS with END_STREAM; RST_STREAM, which may also follow them.
                (0 | 1, 1) | (3, _) => {
                    let started =
                        mem::take(&mut self.started[number(&head[5..]) as usize / 2 % PLACES]);
                    if started != 0 {
                        let latency = (now.as_nanos() as u64).saturating_sub(started) / 1000;
                        self.report.latencies[status(data)].push(latency as u32);
                        self.report.elapsed = now;
                    }
                }
                // SETTINGS and PING, without ACK.
                (4, 0) => self.out.extend(frame(4, 1, &[])),
                (6, 0) => self.out.extend(frame(6, 1, data)),
                // WINDOW_UPDATE.
                (8, _) if head[5..] == [0; 4] => self.send_window += i64::from(number(data)),
                _ => {}
            }
        }
        if self.received >= 1 << 30 {
            self.out.extend(frame(8, 0, &self.received.to_be_bytes()));
            self.received = 0;
        }
        rest.len()
    }
}

/// Returns HEADERS and DATA of a call, without the numbers of the stream and the id.
fn prepared_call(load: &FrameLoad) -> [Vec<u8>; 2] {
    let length = load.body.len();
    assert!(load.id_offset + 11 <= length && length < 16_000);
    // HPACK: indices of `:method: POST` and `:scheme: http`, four fields that are not indexed.
    let mut block = b"\x83\x86".to_vec();
    for (name, value) in [(4, &load.path), (1, &load.address)] {
        assert!(value.len() < 127, "the length of {value} is one byte");
        block.extend([&[name, value.len() as u8], value.as_bytes()].concat());
    }
    block.extend(b"\x0f\x10\x10application/grpc\0\x02te\x08trailers");
    let message = [&[0][..], &(length as u32).to_be_bytes(), &load.body].concat();
    // With END_HEADERS and END_STREAM.
    [frame(1, 4, &block), frame(0, 1, &message)]
}

/// Returns a frame of the connection.
fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    [&length[1..], &[kind, flags, 0, 0, 0, 0], payload].concat()
}

/// Finds `grpc-status` in a header block, in Huffman's code or raw. Returns the place of its value
/// in the report: 0 for OK (0), 1 for `RESOURCE_EXHAUSTED` (8), 2 for everything else.
fn status(block: &[u8]) -> usize {
    let has = |field: &[u8]| block.windows(field.len()).any(|bytes| bytes == field);
    if has(b"\x88\x9a\xca\xc8\xb2\x12\x34\xda\x8f\x81\x07") || has(b"\x0bgrpc-status\x010") {
        0
    } else if has(b"\x88\x9a\xca\xc8\xb2\x12\x34\xda\x8f\x81\x7b") || has(b"\x0bgrpc-status\x018") {
        1
    } else {
        2
    }
}

fn number(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0, |n, byte| n << 8 | u32::from(*byte))
}
