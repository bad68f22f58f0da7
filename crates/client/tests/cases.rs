//! The client does what `clients/cases.yaml` expects of every client, whatever its language.

#[path = "common/cases.rs"]
mod server;

use std::time::Duration;

use rlaas_client::{CheckError, Client, OnNoAnswer, Verdict};
use rlaas_core::algorithm::Cost;
use rlaas_core::clock::{Clock, Deadline, ManualClock, Timestamp};
use rlaas_core::rules::Request;
use serde::{Deserialize, Deserializer};
use tokio::net::TcpListener;
use tokio::time::timeout;

/// Longer than any wait of a test that passes, on a busy machine too.
const TIMEOUT: Duration = Duration::from_secs(20);

/// What a client reads of the table.
#[derive(Deserialize)]
struct Table {
    defaults: Settings,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    #[serde(default = "check")]
    method: String,
    #[serde(default)]
    client: Settings,
    #[serde(rename = "do")]
    steps: Vec<String>,
    expect: Vec<Expected>,
    calls: Option<i64>,
    request_ids: Option<i64>,
    #[serde(default)]
    unanswered: u64,
}

fn check() -> String {
    "Check".to_owned()
}

#[derive(Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Settings {
    timeout: Option<f64>,
    on_no_answer: Option<String>,
    on_overload: Option<String>,
    retries: Option<u32>,
    max_age: Option<f64>,
    token: Option<String>,
    api_key: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Expected {
    allowed: Option<bool>,
    answered_by: Option<String>,
    rule: Option<String>,
    remaining: Option<i64>,
    #[serde(deserialize_with = "wait")]
    retry_after: Wait,
    reason: Option<String>,
    error: Option<String>,
    within: Option<f64>,
}

/// A wait in seconds; `null` in the table is a response without one.
#[derive(Default)]
enum Wait {
    #[default]
    Any,
    Is(Option<f64>),
}

fn wait<'de, D: Deserializer<'de>>(value: D) -> Result<Wait, D::Error> {
    Option::deserialize(value).map(Wait::Is)
}

#[tokio::test]
async fn client_passes_the_table_of_all_clients() {
    let Table { defaults, cases } = serde_saphyr::from_str(server::TABLE).expect("a table");
    assert!(!cases.is_empty());
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("its address").to_string();
    tokio::spawn(server::serve(listener));
    for case in &cases {
        println!("case {}", case.name);
        let client = client(&address, &case.client, &defaults).await;
        play(&client, case, &defaults).await;
    }
}

/// Returns a client that has connected, with the settings of the case. It has time enough to be
/// answered on a busy machine, and its clock stands still; where the server is to be late, the call has
/// the timeout of the table.
async fn client(address: &str, own: &Settings, defaults: &Settings) -> Client {
    let on_no_answer = own.on_no_answer.as_deref().or(defaults.on_no_answer.as_deref());
    let max_age = own.max_age.or(defaults.max_age).expect("a default");
    let mut builder = Client::builder(address)
        .timeout(TIMEOUT)
        .on_no_answer(policy(on_no_answer.expect("a default")))
        .on_overload(policy(own.on_overload.as_deref().unwrap_or("deny")))
        .max_age(Duration::from_secs_f64(max_age))
        .clock(Clock::Manual(ManualClock::new(Timestamp::EPOCH)))
        .retries(own.retries.or(defaults.retries).expect("a default"));
    if let Some(token) = &own.token {
        builder = builder.token(token);
    }
    if let Some(key) = &own.api_key {
        builder = builder.api_key(key);
    }
    builder.connect().await.expect("a server")
}

fn policy(name: &str) -> OnNoAnswer {
    match name {
        "allow" => OnNoAnswer::Allow,
        "deny" => OnNoAnswer::Deny,
        other => panic!("{other} is not a policy of this client"),
    }
}

async fn play(client: &Client, case: &Case, defaults: &Settings) {
    let user = format!("{}@rust", case.name);
    assert_eq!(case.steps.len(), case.expect.len(), "one result for each step");
    for (step, expected) in case.steps.iter().zip(&case.expect) {
        let own = case.client.timeout.or(defaults.timeout).expect("a default");
        let deadline = expected.within.map(|_| Deadline::within(Duration::from_secs_f64(own)));
        let call = run(client, step, &user, deadline.unwrap_or(Deadline::NEVER));
        let within = expected.within.map_or(TIMEOUT, Duration::from_secs_f64);
        let result = timeout(within, call).await.expect("a result in time");
        expected.assert_is(&result);
    }
    assert_eq!(client.unanswered(), case.unanswered, "unanswered");
    let calls = format!("calls/{}/{user}", case.method);
    let seen = client.check(&user_request(&calls)).await.expect("an answer").into_response();
    assert_eq!(seen.current_count, case.calls.unwrap_or(seen.current_count), "calls");
    assert_eq!(seen.remaining, case.request_ids.unwrap_or(seen.remaining), "request ids");
}

async fn run(
    client: &Client,
    step: &str,
    user: &str,
    deadline: Deadline,
) -> Result<Verdict, CheckError> {
    let request = user_request(user);
    if step == "check" {
        return client.check_with_deadline(&request, deadline).await;
    }
    let (verdict, held) = client.reserve(&request, None, deadline).await?;
    let held = held.expect("a reservation");
    let settled = match step {
        "reserve-and-commit-3" => held.commit(Some(Cost::new(3))).await?,
        "reserve-and-fail" => held.cancel().await?,
        other => panic!("{other} is not a step of this client"),
    };
    assert_eq!(settled.len(), 1, "{settled:?}");
    Ok(verdict)
}

fn user_request(user: &str) -> Request<'_> {
    Request::user(user).build().expect("a valid request")
}

impl Expected {
    fn assert_is(&self, result: &Result<Verdict, CheckError>) {
        let verdict = match (result, &self.error) {
            (Ok(verdict), None) => verdict,
            (Err(CheckError::Rejected(status)), Some(code)) => {
                return assert_eq!(status.code(), server::code(code));
            }
            other => panic!("{other:?}"),
        };
        let response = verdict.response();
        let answered_by = format!("{:?}", verdict.answered_by()).to_lowercase();
        assert_eq!(self.allowed.unwrap_or(response.allowed), response.allowed);
        assert_eq!(self.answered_by.as_deref().unwrap_or(&answered_by), answered_by);
        assert_eq!(self.rule.as_deref().unwrap_or(verdict.rule()), verdict.rule());
        assert_eq!(self.remaining.unwrap_or(response.remaining), response.remaining);
        assert_eq!(self.reason.as_deref().unwrap_or(verdict.reason()), verdict.reason());
        if let Wait::Is(seconds) = self.retry_after {
            let wait = response.retry_after.map(|wait| wait.try_into().expect("a wait"));
            assert_eq!(wait, seconds.map(Duration::from_secs_f64));
        }
    }
}
