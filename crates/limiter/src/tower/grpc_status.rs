//! Encodes a `google.rpc.Status` with a `google.rpc.RetryInfo` as the value of
//! `grpc-status-details-bin`.
//!
//! Encoded by hand: one message of three fields is not worth a dependency on prost and tonic. A
//! test decodes it with both.
//!
//! **Source:** `google/rpc/status.proto` and `google/rpc/error_details.proto`; RFC 4648, 4.

use crate::clock::Micros;

const RETRY_INFO: &str = "type.googleapis.com/google.rpc.RetryInfo";

/// Returns a status with a retry delay, in base64 without padding.
pub(super) fn with_retry_info(code: u8, message: &str, retry_after: Micros) -> String {
    let micros = retry_after.as_micros();
    let mut duration = Vec::new();
    integer(&mut duration, 1, micros / 1_000_000);
    integer(&mut duration, 2, micros % 1_000_000 * 1_000);
    let mut retry_info = Vec::new();
    bytes(&mut retry_info, 1, &duration);
    let mut any = Vec::new();
    bytes(&mut any, 1, RETRY_INFO.as_bytes());
    bytes(&mut any, 2, &retry_info);
    let mut status = Vec::new();
    integer(&mut status, 1, code.into());
    bytes(&mut status, 2, message.as_bytes());
    bytes(&mut status, 3, &any);
    base64(&status)
}

fn integer(message: &mut Vec<u8>, field: u8, number: u64) {
    message.push(field << 3);
    varint(message, number);
}

fn bytes(message: &mut Vec<u8>, field: u8, value: &[u8]) {
    message.push(field << 3 | 2);
    varint(message, value.len() as u64);
    message.extend_from_slice(value);
}

fn varint(message: &mut Vec<u8>, mut number: u64) {
    while number > 0x7f {
        message.push(number.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    message.push(number.to_le_bytes()[0]);
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digits = |chunk: &[u8]| {
        let byte = |at: usize| u32::from(chunk.get(at).copied().unwrap_or_default());
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        let digit = move |at: usize| char::from(DIGITS[(bits >> (18 - 6 * at) & 63) as usize]);
        (0..=chunk.len()).map(digit).collect::<Vec<char>>()
    };
    bytes.chunks(3).flat_map(digits).collect()
}
