//! Keys and patterns: two requests share a key if and only if the values that it is made of are equal.

#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use rlaas_limiter::plan::Plan;
use rlaas_limiter::rules::spec::{RuleSpec, RulesSpec};
use rlaas_limiter::{Request, Rule};
use std::time::Duration;

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    /// Which parts name the state.
    parts: [bool; 4],
    /// Which resources the rule is for.
    pattern: &'a str,
    one: Fields<'a>,
    other: Fields<'a>,
}

#[derive(Arbitrary, Debug)]
struct Fields<'a> {
    user_id: &'a str,
    resource: &'a str,
    first: Option<&'a str>,
    second: Option<&'a str>,
}

impl<'a> Fields<'a> {
    fn attributes(&self) -> Vec<(&'a str, &'a str)> {
        let named = |name, value: Option<&'a str>| value.map(|value| (name, value));
        named("first", self.first).into_iter().chain(named("second", self.second)).collect()
    }

    /// The values that the key is made of.
    fn values(&self, parts: [bool; 4]) -> Vec<Option<&'a str>> {
        let resource = (!self.resource.is_empty()).then_some(self.resource);
        let all = [Some(self.user_id), resource, self.first, self.second];
        all.into_iter().zip(parts).filter_map(|(value, is_part)| is_part.then_some(value)).collect()
    }
}

fuzz_target!(|input: Input<'_>| {
    let Input { parts, pattern, one, other } = input;
    let names = ["user_id", "resource", "first", "second"];
    let key_by: Vec<&str> = names
        .into_iter()
        .zip(parts)
        .filter_map(|(name, is_part)| is_part.then_some(name))
        .collect();
    if key_by.is_empty() {
        return;
    }
    let rule = || -> RuleSpec {
        Rule::gcra("rule").limit(5).per(Duration::from_secs(60)).key_by(key_by.clone())
    };
    let rules = RulesSpec { rules: vec![rule()], ..RulesSpec::default() };
    let rules = rules.build().expect("valid rules");
    let key_of = |fields: &Fields<'_>| {
        let attributes = fields.attributes();
        let request = Request::user(fields.user_id).resource(fields.resource);
        let request = request.attributes(attributes.as_slice()).build().ok()?;
        let plan = Plan::for_request(&rules, &request);
        let [hit] = plan.hits.as_slice() else { panic!("one rule matches") };
        Some(hit.key.clone())
    };
    let (Some(key), Some(other_key)) = (key_of(&one), key_of(&other)) else { return };
    assert_eq!(key == other_key, one.values(parts) == other.values(parts), "{key:?} {other_key:?}");
    for character in key.id().chars() {
        assert!(!character.is_control() && !"{}".contains(character), "{key:?}");
    }

    let matching = RulesSpec { rules: vec![rule().resource(pattern)], ..RulesSpec::default() };
    let Ok(matching) = matching.build() else { return };
    let attributes = one.attributes();
    let request = Request::user(one.user_id).resource(one.resource);
    let request = request.attributes(attributes.as_slice());
    let request = request.build().expect("built above");
    // Where it does not match, the default rule decides.
    let plan = Plan::for_request(&matching, &request);
    let has_matched = plan.hits.iter().any(|hit| hit.key.rule() == "rule");
    assert_eq!(
        has_matched,
        fits(&symbols(pattern), one.resource),
        "{pattern:?} {:?}",
        one.resource
    );
});

/// A character, or any text.
enum Symbol {
    Exact(char),
    Any,
}

/// Reads a pattern by its definition: `\*` is a star, and only before a star `\\` is a backslash.
fn symbols(pattern: &str) -> Vec<Symbol> {
    let mut symbols = Vec::new();
    let mut rest = pattern;
    while let Some(first) = rest.chars().next() {
        let backslashes = rest.len() - rest.trim_start_matches('\\').len();
        if backslashes > 0 && rest[backslashes..].starts_with('*') {
            symbols.extend((0..backslashes / 2).map(|_| Symbol::Exact('\\')));
            symbols.push(if backslashes % 2 == 1 { Symbol::Exact('*') } else { Symbol::Any });
            rest = &rest[backslashes + 1..];
        } else {
            symbols.push(if first == '*' { Symbol::Any } else { Symbol::Exact(first) });
            rest = &rest[first.len_utf8()..];
        }
    }
    symbols
}

/// Matches by a table of prefixes: `reached[n]` says that the symbols so far match the first n
/// characters.
fn fits(symbols: &[Symbol], text: &str) -> bool {
    let characters: Vec<char> = text.chars().collect();
    let mut reached = vec![false; characters.len() + 1];
    reached[0] = true;
    for symbol in symbols {
        reached = match symbol {
            Symbol::Any => {
                let first = reached.iter().position(|reached| *reached).unwrap_or(reached.len());
                (0..reached.len()).map(|end| end >= first).collect()
            }
            Symbol::Exact(exact) => {
                let step =
                    |end: usize| end > 0 && reached[end - 1] && characters[end - 1] == *exact;
                (0..reached.len()).map(step).collect()
            }
        };
    }
    reached[characters.len()]
}
