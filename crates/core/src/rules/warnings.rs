//! Warnings about rules that are valid but probably a mistake.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::algorithm::{Algorithm, Window};
use crate::rules::{Grant, Matcher, Mode, Part, Pattern, Request, Rule, RuleSet, TextPattern};

/// Number of log entries for one id above which a rule gets a warning.
const MANY_ENTRIES: u64 = 10_000;

/// A rule that is valid but probably a mistake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// The name of the rule.
    rule: Arc<str>,
    kind: WarningKind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum WarningKind {
    NeverMatches(&'static str),
    OverrideNeverMatches(&'static str),
    NeverDecides { stricter: Arc<str> },
    ManyEntries(u64),
    RefusesChecks,
    KeyByUnmatched(String),
    ForeignPattern { part: String, of_override: bool, syntax: ForeignSyntax },
}

/// Syntax of other pattern languages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ForeignSyntax {
    TwoStars,
    Braces,
    Caret,
    QuestionMark,
}

impl Warning {
    /// Returns the name of the rule.
    pub fn rule(&self) -> &str {
        &self.rule
    }

    /// Returns what is wrong, without the names of rule and field.
    pub fn text(&self) -> String {
        self.kind.to_string()
    }

    /// Returns the name of the rule that makes this one useless, if it is that.
    pub fn stricter(&self) -> Option<&str> {
        match &self.kind {
            WarningKind::NeverDecides { stricter } => Some(stricter),
            _ => None,
        }
    }

    /// Returns the field of the rule's specification; `None`: all of it.
    pub fn field(&self) -> Option<&'static str> {
        match &self.kind {
            WarningKind::NeverDecides { .. } => None,
            WarningKind::ManyEntries(_) => Some("limit"),
            WarningKind::KeyByUnmatched(_) => Some("key-by"),
            WarningKind::OverrideNeverMatches(_)
            | WarningKind::ForeignPattern { of_override: true, .. } => Some("overrides"),
            WarningKind::RefusesChecks
            | WarningKind::NeverMatches(_)
            | WarningKind::ForeignPattern { .. } => Some("match"),
        }
    }
}

/// Returns warnings about valid rules.
pub fn warnings(rules: &RuleSet) -> Vec<Warning> {
    let mut warnings = Vec::new();
    for rule in rules.iter() {
        let mut warn = |kind| warnings.push(Warning { rule: Arc::clone(&rule.name), kind });
        if let Some(why) = unmatchable(&rule.matcher) {
            warn(WarningKind::NeverMatches(why));
        }
        for other in &rule.overrides {
            if let Some(why) = unmatchable(&other.matcher) {
                warn(WarningKind::OverrideNeverMatches(why));
            }
        }
        let is_enforced = rule.mode == Mode::Enforced;
        if rule.algorithm.has_slots() && is_enforced && rule.matcher.patterns.is_empty() {
            warn(WarningKind::RefusesChecks);
        }
        let grants = rule.overrides.iter().filter_map(|other| other.grant);
        let grants = grants.chain([rule.grant]);
        if let Some(entries) = max_log_entries(rule.algorithm, grants) {
            warn(WarningKind::ManyEntries(entries));
        }
        for attribute in unmatched_key_parts(rule) {
            warn(WarningKind::KeyByUnmatched(attribute.to_owned()));
        }
        for (part, syntax) in foreign_patterns(&rule.matcher) {
            warn(WarningKind::ForeignPattern { part, of_override: false, syntax });
        }
        for other in &rule.overrides {
            for (part, syntax) in foreign_patterns(&other.matcher) {
                warn(WarningKind::ForeignPattern { part, of_override: true, syntax });
            }
        }
    }
    for rule in rules.descriptors().iter() {
        if let Some(entries) = max_log_entries(rule.algorithm, [rule.grant]) {
            let kind = WarningKind::ManyEntries(entries);
            warnings.push(Warning { rule: Arc::clone(&rule.name), kind });
        }
    }
    warnings.extend(foreign_descriptor_patterns(rules));
    warnings.extend(redundant_rules(rules));
    warnings
}

/// Returns the parts whose pattern has syntax of another language.
fn foreign_patterns(matcher: &Matcher) -> impl Iterator<Item = (String, ForeignSyntax)> {
    matcher.patterns.iter().filter_map(|(part, pattern)| {
        let Pattern::OneOf(texts) = pattern else { return None };
        let syntax = texts.iter().find_map(syntax)?;
        let part = match part {
            Part::UserId => "user_id".to_owned(),
            Part::Resource => "resource".to_owned(),
            Part::Attribute(name) | Part::AttributeOrUserId(name) => {
                format!("attributes.{}", name.escape_debug())
            }
        };
        Some((part, syntax))
    })
}

/// Returns warnings about the values of descriptors with such syntax, sorted by path.
fn foreign_descriptor_patterns(rules: &RuleSet) -> Vec<Warning> {
    let mut found = Vec::new();
    rules.descriptors().visit_values(|label, text| {
        found.extend(syntax(text).map(|syntax| (label(), syntax)));
    });
    found.sort();
    let warning = |(label, syntax): (String, ForeignSyntax)| {
        let (part, of_override) = ("value".to_owned(), false);
        Warning {
            rule: label.into(),
            kind: WarningKind::ForeignPattern { part, of_override, syntax },
        }
    };
    found.into_iter().map(warning).collect()
}

fn syntax(text: &TextPattern) -> Option<ForeignSyntax> {
    let joined;
    let shown = match text {
        TextPattern::Exact(text) | TextPattern::Prefix(text) => text,
        TextPattern::Wildcard(pattern) => {
            let [_, between @ .., _] = pattern.literals() else { return None };
            if between.iter().any(String::is_empty) {
                return Some(ForeignSyntax::TwoStars);
            }
            joined = pattern.literals().join("*");
            &joined
        }
    };
    let has_braces = shown.split_once('{').is_some_and(|(_, rest)| rest.contains('}'));
    let signs = [
        (has_braces, ForeignSyntax::Braces),
        (shown.contains('^'), ForeignSyntax::Caret),
        (shown.contains('?'), ForeignSyntax::QuestionMark),
    ];
    signs.into_iter().find_map(|(is_there, syntax)| is_there.then_some(syntax))
}

/// Returns the reason why no valid request can match.
fn unmatchable(matcher: &Matcher) -> Option<&'static str> {
    let attributes =
        matcher.patterns.iter().filter(|(part, _)| matches!(part, Part::Attribute(_))).count();
    if attributes > Request::MAX_ATTRIBUTES {
        return Some("it has more attributes than a request can have");
    }
    matcher.patterns.iter().find_map(|(part, pattern)| {
        let most = match part {
            Part::UserId => Request::MAX_USER_ID,
            Part::Resource => Request::MAX_RESOURCE,
            Part::Attribute(name) if !(1..=Request::MAX_ATTRIBUTE_NAME).contains(&name.len()) => {
                return Some("no attribute can have this name");
            }
            Part::Attribute(_) | Part::AttributeOrUserId(_) => Request::MAX_ATTRIBUTE_VALUE,
        };
        let impossible = |text: &TextPattern| match text {
            TextPattern::Exact(value) if value.is_empty() => *part == Part::UserId,
            TextPattern::Exact(value) | TextPattern::Prefix(value) => value.len() > most,
            TextPattern::Wildcard(pattern) => {
                pattern.literals().iter().map(String::len).sum::<usize>() > most
            }
        };
        match pattern {
            Pattern::OneOf(texts) if texts.iter().all(impossible) => Some("no value can match"),
            Pattern::OneOf(_) | Pattern::Present => None,
        }
    })
}

/// Returns the attributes in `key-by` that no matcher of the rule requires. `api_key` is not one if the
/// rule matches a resource: `POST /check` has a field for it.
fn unmatched_key_parts(rule: &Rule) -> impl Iterator<Item = &str> {
    let is_matched = |part: &Part| {
        let overrides = rule.overrides.iter().map(|other| &other.matcher);
        let mut matchers = overrides.chain([&rule.matcher]);
        matchers.any(|matcher| matcher.patterns.iter().any(|(matched, _)| matched == part))
    };
    rule.key_by.iter().filter_map(move |part| match part {
        Part::Attribute(name) if name == "api_key" && is_matched(&Part::Resource) => None,
        // Without the anchor of a calendar that of the rule counts.
        Part::Attribute(name) if rule.anchor_from.as_deref() == Some(name) => None,
        Part::Attribute(name) if !is_matched(part) => Some(name.as_str()),
        _ => None,
    })
}

/// Returns the maximum number of entries in a log for one id, if it is large.
fn max_log_entries(algorithm: Algorithm, grants: impl IntoIterator<Item = Grant>) -> Option<u64> {
    if algorithm != Algorithm::SlidingWindowLog {
        return None;
    }
    let units = grants.into_iter().filter_map(|grant| match grant {
        Grant::Limited(limit) => Some(limit.units()),
        Grant::Banned | Grant::Unlimited => None,
    });
    units.max().filter(|entries| *entries > MANY_ENTRIES)
}

/// Finds rules with the same requests, keys, algorithm and window: the stricter one always decides.
fn redundant_rules(rules: &RuleSet) -> Vec<Warning> {
    // Sorted by scope, then by limit, so that only neighbours must be compared.
    let named = rules.iter().skip(1);
    let named = named.map(|rule| ((scope(rule), units(rule), &*rule.name), rule));
    let named: BTreeMap<_, &Rule> = named.collect();
    let mut warnings = Vec::new();
    let mut before: Option<(&String, &Rule)> = None;
    for ((scope, ..), wide) in &named {
        if let Some((scope_before, strict)) = before.replace((scope, wide))
            && let (Grant::Limited(less), Grant::Limited(more)) = (strict.grant, wide.grant)
            && scope_before == scope
            && strict.overrides.is_empty()
            && wide.overrides.is_empty()
            && less.units() <= more.units()
            && less.burst() <= more.burst()
        {
            let kind = WarningKind::NeverDecides { stricter: Arc::clone(&strict.name) };
            warnings.push(Warning { rule: Arc::clone(&wide.name), kind });
        }
    }
    warnings
}

/// Returns the properties that must be equal for one rule to make another redundant.
fn scope(rule: &Rule) -> String {
    let window = match rule.grant {
        Grant::Limited(limit) => limit.windows(),
        Grant::Banned | Grant::Unlimited => Window::ZERO,
    };
    let Rule { matcher, key_by, algorithm, mode, limit_from, overrides, .. } = rule;
    format!(
        "{matcher:?} {key_by:?} {algorithm:?} {mode:?} {window:?} {limit_from:?} {}",
        overrides.len()
    )
}

fn units(rule: &Rule) -> u64 {
    match rule.grant {
        Grant::Limited(limit) => limit.units(),
        Grant::Banned => 0,
        Grant::Unlimited => u64::MAX,
    }
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_of_key = matches!(self.kind, WarningKind::KeyByUnmatched(_));
        write!(f, "rule {}: {}{}", self.rule, if is_of_key { "key-by: " } else { "" }, self.kind)
    }
}

impl fmt::Display for WarningKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NeverMatches(why) => write!(f, "it never matches: {why}"),
            Self::OverrideNeverMatches(why) => write!(f, "an override never matches: {why}"),
            Self::NeverDecides { stricter } => {
                write!(f, "it never decides: rule {stricter} has the same scope and is stricter")
            }
            Self::ManyEntries(entries) => write!(
                f,
                "its log may have {entries} entries for one id; other algorithms need a few numbers"
            ),
            Self::RefusesChecks => {
                write!(
                    f,
                    "it applies to all requests, and refuses each Check: only Reserve takes slots"
                )
            }
            Self::KeyByUnmatched(attribute) => write!(
                f,
                "no matcher requires the attribute {}: requests without it share one bucket",
                attribute.escape_debug()
            ),
            Self::ForeignPattern { part, of_override, syntax } => {
                let place = if *of_override { "an override's " } else { "" };
                write!(f, "{place}{part}: {syntax}; `*` matches any text, `\\*` a star")
            }
        }
    }
}

impl fmt::Display for ForeignSyntax {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TwoStars => "`**` is the same as `*`",
            Self::Braces => "`{…}` is literal text, as in the template of a route",
            Self::Caret => "`^` is a literal character",
            Self::QuestionMark => "`?` is a literal character",
        })
    }
}
