//! The answer of a look-up in one sentence, for the command line and the console alike.

use prost_types::{Duration, Timestamp};
use rlaas_proto::ratelimit::admin::v1 as proto;
use rlaas_proto::ratelimit::v1::RuleMode;
use rlaas_proto::wait_words;

/// Longest wait in seconds that is said as such; of a longer one its end is.
const MAX_WAIT: i64 = 60;
/// Most rules, or ends, that are named together.
const MAX_LISTED: usize = 5;

/// What a key does to its user, the worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Effect {
    /// It is banned.
    Bans,
    /// It refuses a cost of 1.
    Refuses,
    Passes,
    /// Its rule refuses nothing.
    Shadow,
}

impl From<&proto::UserKey> for Effect {
    fn from(key: &proto::UserKey) -> Self {
        let Some(state) = &key.state else { return Self::Passes };
        match state.mode() {
            RuleMode::Shadow | RuleMode::Off => Self::Shadow,
            _ if end_of_ban(state).is_some() => Self::Bans,
            _ if state.limit == 0 || state.retry_after.is_some() => Self::Refuses,
            _ => Self::Passes,
        }
    }
}

/// Returns the answer: what bans and refuses a user, and until when.
pub(super) fn sentence(user: &str, keys: &[proto::UserKey], now: Timestamp) -> String {
    let is_plain = |char: char| char.is_alphanumeric() || "-_./:@+~*#%".contains(char);
    let user = if user.chars().all(is_plain) { user.to_owned() } else { format!("{user:?}") };
    let keys_with = |effect| keys.iter().filter(move |key| Effect::from(*key) == effect);
    let mut clauses = Vec::new();
    for (verb, word, effect) in [("banned", "on", Effect::Bans), ("refused", "by", Effect::Refuses)]
    {
        let ends = by_end(keys_with(effect), now);
        let ends = ends.iter().map(|(end, rules)| format!("{word} {} {end}", listed(rules)));
        let ends: Vec<String> = ends.collect();
        if !ends.is_empty() {
            clauses.push(format!("{verb} {}", listed(&ends)));
        }
    }
    let mut said = match &*clauses {
        [] => format!("no rule keyed by {user} refuses"),
        clauses => format!("{user} is {}", clauses.join(" and ")),
    };
    match keys_with(Effect::Passes).count() {
        passing if passing == 0 || clauses.is_empty() => {}
        1 => said = format!("{said}; 1 rule lets {user} pass"),
        passing => said = format!("{said}; {passing} rules let {user} pass"),
    }
    match keys_with(Effect::Shadow).count() {
        0 => said,
        shadow => format!("{said}; {shadow} in shadow"),
    }
}

/// Returns the rules of keys, together where they end at the same time.
fn by_end<'a>(
    keys: impl Iterator<Item = &'a proto::UserKey>,
    now: Timestamp,
) -> Vec<(String, Vec<String>)> {
    let mut ends: Vec<(String, Vec<String>)> = Vec::new();
    for key in keys {
        let state = key.state.clone().unwrap_or_default();
        let end = end(&state, now);
        let rule = match &*key.project_id {
            "" => state.rule,
            project => format!("{} ({project})", state.rule),
        };
        match ends.iter_mut().find(|(other, _)| *other == end) {
            Some((_, rules)) => rules.push(rule),
            None => ends.push((end, vec![rule])),
        }
    }
    ends
}

/// Returns until when a key refuses, by the time of day in UTC, or for how long.
fn end(state: &proto::KeyState, now: Timestamp) -> String {
    let wait = state.retry_after.map(|wait| wait.seconds + i64::from(wait.nanos > 0));
    let end = match (end_of_ban(state), wait) {
        (Some(end), _) => end,
        (None, Some(seconds)) if seconds <= MAX_WAIT => {
            return format!("for {}", wait_words(&Duration { seconds, nanos: 0 }));
        }
        (None, Some(wait)) => now.seconds + wait,
        (None, None) => return "always".to_owned(),
    };
    let text = |seconds| Timestamp { seconds, nanos: 0 }.to_string().replace('T', " ");
    let (end, today) = (text(end).replace('Z', " UTC"), text(now.seconds));
    let time = end.split_once(' ').filter(|(day, _)| today.starts_with(day));
    format!("until {}", time.map_or(&*end, |(_, time)| time))
}

fn end_of_ban(state: &proto::KeyState) -> Option<i64> {
    Some(state.ban()?.expires_at?.seconds)
}

/// Returns `a, b and c`: of many the first, and the number of the others.
fn listed(texts: &[String]) -> String {
    match texts {
        [] => String::new(),
        [only] => only.clone(),
        many if many.len() > MAX_LISTED + 1 => {
            let more = many.len() - MAX_LISTED;
            format!("{} and {more} more", many[..MAX_LISTED].join(", "))
        }
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use rlaas_proto::ratelimit::v1::Grant;
    use rlaas_proto::ratelimit::v1::grant::Kind;

    use super::*;

    fn key(project: &str, rule: &str, limit: i64) -> proto::UserKey {
        let state = proto::KeyState { rule: rule.to_owned(), limit, ..Default::default() };
        proto::UserKey { project_id: project.to_owned(), state: Some(state), ..Default::default() }
    }

    fn with(key: proto::UserKey, change: impl FnOnce(&mut proto::KeyState)) -> proto::UserKey {
        let mut state = key.state.clone().expect("a state");
        change(&mut state);
        proto::UserKey { state: Some(state), ..key }
    }

    fn banned(project: &str, rule: &str, seconds: i64) -> proto::UserKey {
        let grant = Some(Grant { kind: Some(Kind::Banned(true)), burst: 0 });
        let expires_at = Some(Timestamp { seconds, nanos: 0 });
        let ban = proto::KeyOverride { grant, expires_at, ..Default::default() };
        with(key(project, rule, 0), |state| state.overrides.push(ban))
    }

    fn refused(rule: &str, seconds: i64) -> proto::UserKey {
        let wait = Some(Duration { seconds, nanos: 1 });
        with(key("", rule, 3), |state| state.retry_after = wait)
    }

    fn said(user: &str, keys: &[proto::UserKey]) -> String {
        sentence(user, keys, Timestamp { seconds: 1_700_000_000, nanos: 5 })
    }

    #[test]
    fn the_answer_has_rules_that_end_together_together() {
        let (soon, tomorrow) = (1_700_003_600, 1_700_090_000);
        let shadow = || with(refused("soft", 9), |state| state.mode = RuleMode::Shadow.into());
        for (keys, expected) in [
            (vec![], "no rule keyed by bob refuses"),
            (vec![key("", "pay", 3), shadow()], "no rule keyed by bob refuses; 1 in shadow"),
            (
                vec![banned("", "pay", soon), banned("shop", "search", soon)],
                "bob is banned on pay and search (shop) until 23:13:20 UTC",
            ),
            (
                vec![banned("", "pay", tomorrow), refused("a", 25), key("", "b", 0)],
                "bob is banned on pay until 2023-11-15 23:13:20 UTC and refused by a for 26s and \
                 by b always",
            ),
            (
                vec![refused("a", 3_599), refused("b", 25), key("", "c", 3), shadow(), shadow()],
                "bob is refused by a until 23:13:20 UTC and by b for 26s; 1 rule lets bob pass; \
                 2 in shadow",
            ),
        ] {
            assert_eq!(said("bob", &keys), expected);
        }
        let many: Vec<_> = (0..9).map(|rule| banned("", &format!("r{rule}"), soon)).collect();
        let expected = "x is banned on r0, r1, r2, r3, r4 and 4 more until 23:13:20 UTC";
        assert_eq!(said("x", &many), expected);
        let expected = r#"no rule keyed by "a passes\n\u{202e}" refuses"#;
        assert_eq!(said("a passes\n\u{202e}", &[]), expected);
    }
}
