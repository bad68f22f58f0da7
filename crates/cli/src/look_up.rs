//! A user under the rules of all projects: the answer, the keys that it rests on, and for each the command
//! that changes it.

use std::fmt::Write;

use rlaas_proto::TypedApiKey;
use rlaas_proto::ratelimit::admin::v1::{LookUpRequest, RuleRef, UserKey};
use rlaas_proto::ratelimit::v1::RuleMode;
use tonic::Status;

use crate::call::Admin;
use crate::fields::{dynamic, messages};
use crate::{output, text};

/// Most rules keyed otherwise that are named.
const MAX_DENYING: usize = 5;

/// Returns the answer for a user of a project, or with `-` of all: lines for people.
pub(crate) async fn of_user(
    admin: &mut Admin,
    user: &str,
    project: String,
) -> Result<String, Status> {
    let request = LookUpRequest { user_id: user.to_owned(), project_id: project };
    let found = admin.look_up(request).await?.into_inner();
    let mut lines = text::printable(&found.answer) + "\n";
    let denying = found.keyed_otherwise.iter().filter(|rule| rule.denied > 0).take(MAX_DENYING);
    let denying = denying.map(|RuleRef { project_id, rule, denied }| {
        format!("{} ({}) {denied}", text::value(rule), text::project(project_id))
    });
    let denying = denying.collect::<Vec<_>>().join(", ");
    if !denying.is_empty() {
        let _infallible =
            writeln!(lines, "keyed otherwise, refused in the last 15 minutes: {denying}");
    }
    if !found.keys.is_empty() {
        let keys = messages(&dynamic("admin.v1.LookUpResponse", &found), "keys");
        lines = lines + "\n" + &output::table("user_keys", &keys);
    }
    if found.keys_left_out > 0 {
        let more = found.keys_left_out;
        let _infallible = writeln!(lines, "… and {more} more: --project looks at one project");
    }
    match found.coverage {
        Some(coverage) => lines += &text::coverage(coverage),
        // Of an API key nothing is counted.
        None if TypedApiKey::whole(user).is_some() => {}
        None => lines += "refusals are not counted: telemetry.top-keys is off\n",
    }
    let others = found.keyed_otherwise.len() as u64 + u64::from(found.keyed_otherwise_left_out);
    if others > 0 {
        let others = text::count(others, "rule");
        let _infallible = writeln!(lines, "not looked at, because keyed otherwise: {others}");
    }
    Ok(lines + "who changed what: rlaas audit\n")
}

/// Returns the state of a key in a few words.
pub(crate) fn state(key: &UserKey) -> String {
    let state = key.state.clone().unwrap_or_default();
    if let RuleMode::Shadow | RuleMode::Off = state.mode() {
        return "in shadow".to_owned();
    }
    if let Some(ban) = state.ban() {
        let (until, by) = (text::time(ban.expires_at.as_ref()), text::value(&ban.actor));
        return format!("banned until {until}, by {by}: {}", text::words(&ban.reason));
    }
    let (used, passes) = (text::key_use(&state), state.retry_words());
    match state.limit {
        0 | i64::MAX => text::limit(state.limit),
        _ => format!("{used}, passes {passes}"),
    }
}

/// Returns the command that lets a key through, or takes that back; `-` if its rule must be changed, or if
/// the key can't be typed.
pub(crate) fn change(key: &UserKey) -> String {
    command(key).unwrap_or_else(|| "-".to_owned())
}

fn command(key: &UserKey) -> Option<String> {
    let state = key.state.clone()?;
    let (verb, options) = match state.limit {
        _ if state.ban().is_some() => ("unban", String::new()),
        _ if !state.overrides.is_empty() => ("override clear", String::new()),
        0 | i64::MAX => return None,
        limit if key.overridable => {
            let [limit, at_once] = [limit, state.capacity()].map(|units| units.saturating_mul(2));
            let own = if at_once == limit { String::new() } else { format!(" --burst {at_once}") };
            ("override set", format!(" --limit {limit}{own} --for 1d"))
        }
        _ => ("refund", " --units 1".to_owned()),
    };
    let key_ref = state.key.as_ref()?;
    let user = match &*key_ref.parts {
        [part] if part.name == "user_id" => part.value.as_deref(),
        _ => None,
    };
    let user = user.filter(|user| !user.starts_with(['-', '#'])).and_then(quoted);
    let target = user.or_else(|| Some(format!("--id={}", quoted(&key_ref.id)?)))?;
    let (rule, project) = (quoted(&state.rule)?, &key.project_id);
    let project = if project.is_empty() { String::new() } else { format!(" --project {project}") };
    Some(format!("rlaas {verb} {target} --rule {rule}{project}{options} --reason support"))
}

/// Returns a text as a shell takes it for one word; `None` if it has characters that nobody sees.
fn quoted(text: &str) -> Option<String> {
    let is_plain = |char: char| char.is_ascii_alphanumeric() || "-_./:@+%,".contains(char);
    if !text.is_empty() && text.chars().all(is_plain) {
        return Some(text.to_owned());
    }
    (text::printable(text) == text).then(|| format!("'{}'", text.replace('\'', r"'\''")))
}

#[cfg(test)]
mod tests {
    use rlaas_proto::ratelimit::admin::v1::{KeyPart, KeyRef, KeyState};

    use super::*;

    #[test]
    fn commands_are_quoted_and_name_keys_that_can_be_typed() {
        let refund = |user: &str, id: &str| {
            let part = KeyPart { name: "user_id".to_owned(), value: Some(user.to_owned()) };
            let key = KeyRef { parts: vec![part], id: id.to_owned(), ..KeyRef::default() };
            let (rule, key) = ("pay".to_owned(), Some(key));
            let state = Some(KeyState { rule, key, limit: 3, ..KeyState::default() });
            change(&UserKey { state, ..UserKey::default() })
        };
        for (user, id, target) in [
            ("bob", "bob", "bob"),
            ("$(rm it)", "x", "'$(rm it)'"),
            ("O'Brien", "x", r"'O'\''Brien'"),
            ("-bob", "-bob", "--id=-bob"),
            ("a\nb", "a%0Ab", "--id=a%0Ab"),
        ] {
            let expected = format!("rlaas refund {target} --rule pay --units 1 --reason support");
            assert_eq!(refund(user, id), expected, "{user:?}");
        }
        assert_eq!(refund("\u{202e}", "\u{202e}"), "-");
    }
}
