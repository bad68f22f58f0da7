//! What other instances, or others who may write to Redis, have put there: reports of instances, records
//! of the audit, claims of request ids. The first byte selects the kind, the rest is the value; the
//! audit has several, each after its length in two bytes.

#![no_main]

use axum::http::{Method, StatusCode};
use libfuzzer_sys::fuzz_target;
use rlaas::api::admin::Note;
use rlaas::clock::Deadline;
use rlaas_fuzz::{RUNTIME, administrator, http_api, limiter, send};
use std::time::Duration;

const RESET: &[u8] =
    br#"{"selector":{"request":{"userId":"alice"}},"reason":"a test","requestId":"one"}"#;

fuzz_target!(|data: &[u8]| {
    let Some((kind, value)) = data.split_first() else { return };
    let administrator = administrator(&limiter());
    let fleet = administrator.fleet().clone();
    let api = http_api(administrator);
    let (minute, never) = (Duration::from_mins(1), Deadline::NEVER);
    RUNTIME.block_on(async {
        let call = async |method, path, content: &[u8]| {
            send(&api, &method, path, content).await.expect("a URI")
        };
        let list = async |path| {
            let (status, body) = call(Method::GET, path, b"").await;
            assert_eq!(status, StatusCode::OK, "{path}: {}", String::from_utf8_lossy(&body));
            body
        };
        match kind % 4 {
            0 => {
                let put = fleet.put("instances", "another\n", value, minute, never).await;
                if put.is_ok() {
                    list("/v1/admin/instances").await;
                }
            }
            1 => {
                let mut values = value;
                while let Some((len, rest)) = values.split_first_chunk::<2>() {
                    let len = usize::from(u16::from_be_bytes(*len)).min(rest.len());
                    let (record, rest) = rest.split_at(len);
                    fleet.append("audit", record, 1_000, never).await.expect("appended");
                    values = rest;
                }
                list("/v1/admin/audit").await;
            }
            2 => {
                let path = "/v1/admin/keys:reset";
                assert_eq!(call(Method::POST, path, RESET).await.0, StatusCode::OK);
                let claims = fleet.values("changes", never).await.expect("values");
                if fleet.put("changes", &claims[0].name, value, minute, never).await.is_err() {
                    return;
                }
                // The answer of another version, or that the first call has not ended, or that it
                // was another change.
                let (status, body) = call(Method::POST, path, RESET).await;
                let expected =
                    [StatusCode::OK, StatusCode::SERVICE_UNAVAILABLE, StatusCode::BAD_REQUEST];
                assert!(expected.contains(&status), "{}", String::from_utf8_lossy(&body));
            }
            _ => drop(Note::from_bytes(value)),
        }
    });
});
