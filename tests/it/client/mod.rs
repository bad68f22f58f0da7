//! `rlaas-client` against servers that run, hang or are not there.

mod deadlines;
mod load;
mod no_answer;
mod refusals;
mod secured;

use std::collections::HashMap;
use std::sync::LazyLock;
use std::time::Duration;

use rlaas::rules::{Draft, Request};
use rlaas_client::{CheckError, Client, Verdict};

/// Longer than any wait of these tests that does not fail.
const PATIENCE: Duration = Duration::from_secs(20);

static NO_ATTRIBUTES: LazyLock<HashMap<String, String>> = LazyLock::new(HashMap::new);

fn draft(user_id: &str) -> Draft<'_> {
    Draft { user_id, resource: "", attributes: &NO_ATTRIBUTES, cost: None, dry_run: false }
}

async fn ask(client: &Client, draft: Draft<'_>) -> Result<Verdict, CheckError> {
    client.check(&Request::new(draft).expect("a valid request")).await
}
