//! The rules of all projects that have refused a user lately, or were near the limit for them: where a
//! user id is all that is known.

use std::collections::BTreeMap;
use std::fmt::Write;

use prost_types::Duration;
use rlaas_proto::ratelimit::admin::v1::selector::Whose;
use rlaas_proto::ratelimit::admin::v1::{
    InspectRequest, KeyRef, KeyState, RuleRef, Selector, TopKey, TopKeysRequest, TopKeysResponse,
    TopKind,
};
use rlaas_proto::ratelimit::v1::RuleMode;
use tonic::Status;

use crate::call::Admin;
use crate::table::{Column, Table};
use crate::text;

/// Most keys whose state is shown.
const MAX_STATES: usize = 20;
/// Most keys of an answer.
const MAX_KEYS: i32 = 128;

/// A key with its counts in the last hour.
#[derive(Default)]
struct LookedUpKey {
    key: KeyRef,
    refused: u64,
    near_limit: u64,
}

/// Returns what all rules have counted for a user, for people. An error is a line of it: the
/// explanation is there without it.
pub(crate) async fn of_user(admin: &mut Admin, user: &str) -> String {
    let head = "\nThis is of a request without resource. ";
    match counted(admin, user).await {
        Ok(lines) => format!("{head}{lines}"),
        Err(status) => {
            let why = text::printable(status.message());
            format!("{head}What other rules have refused is not known: {why}\n")
        }
    }
}

async fn counted(admin: &mut Admin, user: &str) -> Result<String, Status> {
    let mut found = BTreeMap::<_, LookedUpKey>::new();
    let refused = top(admin, user, TopKind::Denied).await?;
    let near_limit = top(admin, user, TopKind::NearLimit).await?;
    let coverage = refused.coverage.unwrap_or_default();
    if coverage.instances.is_empty() {
        return Ok("What other rules have refused is for callers with role operate.\n".to_owned());
    }
    let mut entry = |of: TopKey, add: fn(&mut LookedUpKey, u64)| {
        let key = of.key.unwrap_or_default();
        let place = (of.project_id, of.rule, key.id.clone());
        let found = found.entry(place).or_default();
        found.key = key;
        add(found, of.count);
    };
    for key in refused.keys {
        entry(key, |found, count| found.refused = count);
    }
    for key in near_limit.keys {
        entry(key, |found, count| found.near_limit = count);
    }
    let mut found: Vec<_> = found.into_iter().collect();
    found.sort_by_key(|(_, of)| std::cmp::Reverse((of.refused, of.near_limit)));
    let mut lines = if found.is_empty() {
        "No rule has refused this user in the last hour, or was near its limit.\n".to_owned()
    } else {
        let table = table(admin, found).await;
        format!("Refused or near the limit in the last hour, by all rules:\n{table}")
    };
    lines += &text::coverage(coverage);
    let rules = &refused.keyed_otherwise;
    if !rules.is_empty() {
        let name = |of: &RuleRef| rule(&of.project_id, &of.rule);
        let names: Vec<_> = rules.iter().map(name).collect();
        let _infallible = write!(lines, "not looked at, keyed otherwise: {}", names.join(", "));
        if refused.keyed_otherwise_left_out > 0 {
            let _infallible = write!(lines, " and {} more", refused.keyed_otherwise_left_out);
        }
        lines.push('\n');
    }
    Ok(lines)
}

async fn top(admin: &mut Admin, user: &str, kind: TopKind) -> Result<TopKeysResponse, Status> {
    let request = TopKeysRequest {
        project_id: "-".to_owned(),
        kind: kind.into(),
        window: Some(Duration { seconds: 3_600, nanos: 0 }),
        max_keys: MAX_KEYS,
        value: user.to_owned(),
        ..TopKeysRequest::default()
    };
    Ok(admin.top_keys(request).await?.into_inner())
}

async fn table(admin: &mut Admin, found: Vec<((String, String, String), LookedUpKey)>) -> String {
    let mut table = Table::new(&[
        Column::word("PROJECT"),
        Column::text("RULE"),
        Column::number("REFUSED"),
        Column::number("NEAR LIMIT"),
        Column::text("KEY"),
        Column::word("NOW"),
    ]);
    for (at, ((project, rule, _), of)) in found.into_iter().enumerate() {
        let state =
            if at < MAX_STATES { state(admin, &project, &rule, &of.key).await } else { None };
        table.push([
            text::project(&project),
            text::value(&rule),
            of.refused.to_string(),
            of.near_limit.to_string(),
            text::key(Some(&of.key)),
            state.map_or_else(|| "-".to_owned(), |state| now(&state)),
        ]);
    }
    table.lines()
}

async fn state(admin: &mut Admin, project: &str, rule: &str, key: &KeyRef) -> Option<KeyState> {
    let key = KeyRef { id: key.id.clone(), ..KeyRef::default() };
    let selector = Selector {
        project_id: project.to_owned(),
        rule: rule.to_owned(),
        whose: Some(Whose::Key(key)),
    };
    let request = InspectRequest { selector: Some(selector) };
    // A rule that was deleted has no state any more.
    admin.inspect(request).await.ok()?.into_inner().keys.pop()
}

/// Returns the state of a key in a few words.
fn now(state: &KeyState) -> String {
    match state.mode() {
        RuleMode::Enforce | RuleMode::Unspecified => {}
        RuleMode::Shadow => return "in shadow".to_owned(),
        RuleMode::Off => return "off".to_owned(),
    }
    match (state.limit, state.remaining) {
        (0, _) => text::limit(0),
        (i64::MAX, _) => text::limit(i64::MAX),
        (limit, left) if left > 0 => format!("{left} of {limit} left"),
        (limit, _) => format!("0 of {limit} left, wait {}", text::wait(state.retry_after.as_ref())),
    }
}

fn rule(project: &str, rule: &str) -> String {
    let place = if project.is_empty() { String::new() } else { format!("{project}/") };
    text::value(&format!("{place}{rule}"))
}
