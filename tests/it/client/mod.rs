//! `rlaas-client` with servers that run, hang or are not reachable.

mod deadlines;
mod flood;
mod no_answer;
mod remembered_denials;
mod reservations;
mod retries;
mod tls_and_tokens;

use std::collections::HashMap;
use std::sync::LazyLock;
use std::time::Duration;

use rlaas::rules::{Request, RequestFields};
use rlaas_client::{CheckError, Client, Verdict};

/// Longer than any wait of a test that passes.
const TIMEOUT: Duration = Duration::from_secs(20);

static NO_ATTRIBUTES: LazyLock<HashMap<String, String>> = LazyLock::new(HashMap::new);

fn fields(user_id: &str) -> RequestFields<'_> {
    RequestFields { user_id, resource: "", attributes: &NO_ATTRIBUTES, cost: None, dry_run: false }
}

async fn check(client: &Client, fields: RequestFields<'_>) -> Result<Verdict, CheckError> {
    client.check(&Request::new(fields).expect("a valid request")).await
}
