//! The keys of a rule with the highest counts: in clear with the role `operate`, else hashed.

use std::time::Duration;

use maud::{Markup, html};
use rlaas_limiter::Snapshot;

use super::query::{KINDS, RuleQuery, WINDOWS};
use super::render::RulePage;
use crate::admin::{AdminError, FleetCounts, KeyView};
use crate::clock::Deadline;
use crate::console::ConsoleContext;
use crate::console::fields::Link;
use crate::console::pages::now::percent;
use crate::console::rule_words::key_parts;
use crate::console::table::{PageColumn, PageTable};
use crate::console::text::{foreign, number};
use crate::plan::{KeyPart, Selector, SelectorTarget};
use crate::projects::ProjectId;
use crate::telemetry::top_keys::{CountQuery, TopKind};

/// Longest wait for the store and for other instances.
const MAX_TIME: Duration = Duration::from_secs(2);
/// Most keys.
const MAX_KEYS: usize = 20;

/// The keys with the highest counts.
#[derive(Debug, Default)]
pub(super) struct TopTable {
    keys: Vec<CountedKey>,
    /// The sum of the counts of all keys.
    total: u64,
    /// Most by which a count may be too high.
    error: u64,
    instances: usize,
    missing: usize,
    /// Why the counts are those of some instances only.
    problem: Option<String>,
}

#[derive(Debug)]
struct CountedKey {
    parts: Vec<KeyPart>,
    id: String,
    /// The link to the key, if the visitor sees it in clear.
    link: Option<Link>,
    count: u64,
}

/// Counts the keys.
///
/// # Errors
///
/// Why nothing is known, as a text.
pub(super) async fn read(
    console: &ConsoleContext,
    project: &ProjectId,
    snapshot: &Snapshot,
    query: &RuleQuery,
    is_in_clear: bool,
) -> Result<TopTable, String> {
    let (administrator, deadline) = (&console.administrator, Deadline::within(MAX_TIME));
    let view = if is_in_clear {
        KeyView::Clear
    } else {
        let view = KeyView::hashed(administrator.hasher(), deadline).await;
        view.map_err(|error| error.to_string())?
    };
    let counts = CountQuery {
        project: project.as_str(),
        rule: &query.name,
        kind: query.top,
        window: query.window,
    };
    let counted = administrator.top_keys(&snapshot.rules, &counts, deadline).await;
    let FleetCounts { summary, instances, missing, problem } =
        counted.map_err(|error| error.to_string())?;
    let key = |id: &str, least: u64| {
        let selector = Selector { target: SelectorTarget::Id(id), rule: Some(&query.name) };
        let selected = snapshot.rules.select(&selector).ok().and_then(|mut keys| keys.pop());
        let link = selected.is_some() && is_in_clear;
        let shown = view.key(selected.map(|key| key.parts).unwrap_or_default(), id);
        let parts = shown.parts.into_iter();
        CountedKey {
            parts: parts.map(|part| KeyPart { name: part.name, value: part.value }).collect(),
            id: shown.id,
            link: link.then(|| {
                let link = Link::to("key").with("project", &query.project);
                link.with("rule", &query.name).with("id", id)
            }),
            count: least.saturating_add(summary.error()),
        }
    };
    let keys = summary.counters().iter().take(MAX_KEYS);
    Ok(TopTable {
        keys: keys.map(|counter| key(&counter.key, counter.least)).collect(),
        total: summary.total(),
        error: summary.error(),
        instances: instances.len(),
        missing: missing.len(),
        problem: problem.map(|error| AdminError::Store(error).to_string()),
    })
}

impl RulePage {
    /// Shows the keys, with links to the other kinds and times.
    pub(super) fn top(&self) -> Markup {
        let query = &self.query;
        let tab = |name: &str, of: RuleQuery, is_chosen: bool| {
            html! { li { a href=(of.link()) aria-current=[is_chosen.then_some("true")] { (name) } } }
        };
        html! {
            h2 id="top" { "Keys hit hardest" }
            nav.tabs aria-label="Keys and time" {
                ul {
                    @for (kind, _, name) in KINDS {
                        (tab(name, RuleQuery { top: kind, ..query.clone() }, kind == query.top))
                    }
                }
                ul {
                    @for (window, _, name) in WINDOWS {
                        (tab(name, RuleQuery { window, ..query.clone() }, window == query.window))
                    }
                }
            }
            @match &self.top {
                Err(_) if !self.frame.has_instances => p.notice { "Keys are not known." },
                Err(problem) => p.notice { "Keys are not known: " (foreign(problem)) "." },
                Ok(top) => {
                    (table(query, top))
                    @if self.frame.has_instances { (coverage(top)) }
                }
            }
        }
    }
}

fn table(query: &RuleQuery, top: &TopTable) -> Markup {
    let count = match query.top {
        TopKind::Denied => "Refused",
        TopKind::NearLimit => "Allowed near the limit",
        TopKind::Used => "Units taken",
    };
    let columns = [PageColumn::Text("Key"), PageColumn::Number(count), PageColumn::Number("Share")];
    let caption = if top.error == 0 {
        "Keys with the highest counts, which are exact".to_owned()
    } else {
        format!("Keys with the highest counts, which are at most {} too high", top.error)
    };
    let rows = html! {
        @for key in &top.keys {
            tr {
                th scope="row" { (shown(key)) }
                td.right { (number(key.count)) }
                td.right { (percent(key.count.min(top.total), top.total)) }
            }
        }
    };
    html! {
        @if top.keys.is_empty() { p.notice { "No key has any in this time." } }
        @else { (PageTable { of: "keys", caption: &caption, columns: &columns }.with_rows(&rows)) }
    }
}

/// Says which instances the counts are of.
fn coverage(top: &TopTable) -> Markup {
    html! {
        p.hint {
            "Of " (number(top.instances as u64)) @if top.instances == 1 { " instance" } @else { " instances" }
            @if top.missing > 0 { "; " strong.bad { (number(top.missing as u64)) " missing" } }
            @if let Some(problem) = &top.problem { ": " (foreign(problem)) }
            "."
        }
    }
}

fn shown(key: &CountedKey) -> Markup {
    let text = html! {
        @if key.parts.is_empty() { (foreign(&key.id)) } @else { (key_parts(&key.parts)) }
    };
    html! {
        @match &key.link {
            Some(link) => a href=(link) { (text) },
            None => (text),
        }
    }
}
