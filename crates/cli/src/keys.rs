//! Tables of the states of keys.

use prost_reflect::{DynamicMessage, ReflectMessage};
use prost_types::Timestamp;
use rlaas_proto::ratelimit::admin::v1::{
    Change, GrantFrom, InspectResponse, KeyOverride, KeyState,
};

use crate::output::{Exchange, Lines};
use crate::table::{Column, Table};
use crate::{fields, output, text};

/// Why nothing was changed without a key.
const NO_KEY: &str =
    "no key was found; bans and overrides are for keys of rules with `overridable: true`";

/// Returns a table of the states in a response, and a line for each override.
pub(crate) fn states(response: &DynamicMessage) -> String {
    let rows = fields::messages(response, "keys");
    if rows.is_empty() {
        return "no rule applies: there is no key\n".to_owned();
    }
    let keys: Vec<KeyState> = rows.iter().map(fields::typed).collect();
    output::table("states", &rows) + &notes(&keys)
}

/// Returns the same, and where each key is stored.
pub(crate) fn inspected(response: &DynamicMessage) -> String {
    let InspectResponse { keys } = fields::typed(response);
    let stored = keys.iter().filter_map(|state| {
        let key = state.key.as_ref()?;
        let (rule, id, name) =
            (text::value(&state.rule), text::value(&key.id), text::value(&key.storage_key));
        Some(format!("{rule}: id {id}, in the store {name}\n"))
    });
    states(response) + &stored.collect::<String>()
}

/// Returns a table of what a change did, and a line for each override after it.
pub(crate) fn change(exchange: &Exchange) -> Lines {
    let change = fields::messages(&exchange.response, "change");
    let change: Change = change.first().map(fields::typed).unwrap_or_default();
    let found_nothing = |why: &str| {
        let text = format!("nothing was changed: {why}\n");
        Lines { found_nothing: true, ..text.into() }
    };
    if change.after.is_empty() && !change.replayed {
        return found_nothing(NO_KEY);
    }
    let overrides =
        |states: &[KeyState]| states.iter().map(|state| state.overrides.len()).sum::<usize>();
    let is_end = exchange.request.descriptor().name() == "ClearOverrideRequest";
    if is_end && overrides(&change.before) == overrides(&change.after) && !change.replayed {
        return found_nothing("no such ban or override was found");
    }
    let mut table = Table::new(&[
        Column::text("RULE"),
        Column::word("LIMIT"),
        Column::word("LEFT"),
        Column::word("RESETS"),
        Column::word("GRANT FROM"),
        Column::text("KEY"),
    ]);
    for (at, after) in change.after.iter().enumerate() {
        let before = change.before.get(at).unwrap_or(after);
        let both = |show: &dyn Fn(&KeyState) -> String| changed(&show(before), &show(after));
        table.push([
            text::value(&after.rule),
            both(&|state| text::limit(state.limit)),
            both(&|state| text::units(state.remaining)),
            after.reset_words(),
            both(&|state| grant_from(state.grant_from()).to_owned()),
            text::key(after.key.as_ref()),
        ]);
    }
    let mut lines = table.lines() + &notes(&change.after);
    lines += &in_force(change.everywhere_by.as_ref());
    if change.replayed {
        lines += "already done under this request id: nothing was changed again\n";
    }
    lines.into()
}

/// Returns a line that says from when on a change is in force; none without a change.
pub(crate) fn in_force(everywhere_by: Option<&Timestamp>) -> String {
    let line = |by| format!("in force here; on every other instance by {}\n", text::time(Some(by)));
    everywhere_by.map(line).unwrap_or_default()
}

/// Returns `before → after`, or one of them if they are the same.
fn changed(before: &str, after: &str) -> String {
    if before == after { after.to_owned() } else { format!("{before} → {after}") }
}

fn notes(keys: &[KeyState]) -> String {
    let held = keys.iter().filter(|key| key.holds > 0).map(|key| {
        let (rule, units) = (text::value(&key.rule), text::units(key.held));
        format!("{rule}: {units} held, reservations: {}\n", key.holds)
    });
    let own = keys.iter().filter(|key| !key.limit_from.is_empty()).map(|key| {
        let (rule, place) = (text::value(&key.rule), text::value(&key.limit_from));
        format!("{rule}: requests have limits of their own, from {place}\n")
    });
    let held = own.chain(held);
    let overrides = keys.iter().flat_map(|key| &key.overrides);
    held.chain(overrides.map(|other| override_line(other) + "\n")).collect()
}

/// Returns one line about an override.
pub(crate) fn override_line(other: &KeyOverride) -> String {
    format!(
        "{}: {} until {}, set by {}: {}",
        text::value(&other.rule),
        text::grant(other.grant.as_ref()),
        text::time(other.expires_at.as_ref()),
        text::value(&other.actor),
        text::words(&other.reason),
    )
}

fn grant_from(from: GrantFrom) -> &'static str {
    match from {
        GrantFrom::Unspecified => "-",
        GrantFrom::Rule => "rule",
        GrantFrom::RuleOverride => "rule override",
        GrantFrom::KeyOverride => "key override",
        GrantFrom::Request => "request",
    }
}
