//! Replies of the script: parsed or refused, with one result for each request.

#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use rlaas_limiter::store::fuzzing::FuzzCall;

static CALL: LazyLock<FuzzCall> = LazyLock::new(FuzzCall::new);

fuzz_target!(|reply: &[u8]| {
    if let Ok(results) = CALL.parse(reply) {
        assert_eq!(results, CALL.len(), "a result for each request");
    }
});
