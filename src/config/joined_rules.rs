//! The rules of several files as one list.
//!
//! A rule may stand in the place of one of an earlier file that has its name: if it says
//! `replace: true`. The items are values as files have them; `rules.rs` reads them.

use std::collections::HashMap;

use figment::value::Value;

use super::problem::Problem;
use super::rules::REPLACE;
use super::values;

/// The rules of all files so far.
#[derive(Default)]
pub(super) struct JoinedRules(Vec<JoinedRule>);

struct JoinedRule {
    origin: String,
    /// Place in the list of its file.
    index: usize,
    value: Value,
}

impl JoinedRules {
    /// Returns the place in the list of each rule of a file, and adds what is wrong with names.
    pub(super) fn places(
        &self,
        origin: &str,
        rules: &[Value],
        problems: &mut Vec<Problem>,
    ) -> Vec<usize> {
        let names = self.0.iter().enumerate();
        let mut earlier: HashMap<&str, usize> =
            names.filter_map(|(place, rule)| Some((name_of(&rule.value)?, place))).collect();
        let mut end = self.0.len();
        let mut places = Vec::with_capacity(rules.len());
        for (index, rule) in rules.iter().enumerate() {
            let place = name_of(rule).and_then(|name| earlier.remove(name));
            if let Some(place) = place.filter(|_| !replaces(rule)) {
                problems.push(self.0[place].same_name(origin, index));
            }
            places.push(place.unwrap_or(end));
            end += usize::from(place.is_none());
        }
        places
    }

    /// Takes the rules of a file, with their places.
    pub(super) fn join(&mut self, origin: &str, rules: impl Iterator<Item = (usize, Value)>) {
        for (index, (place, value)) in rules.enumerate() {
            let rule = JoinedRule { origin: origin.to_owned(), index, value };
            match self.0.get_mut(place) {
                Some(earlier) => *earlier = rule,
                None => self.0.push(rule),
            }
        }
    }

    /// Returns the list; `None` if no file has a rule.
    pub(super) fn into_value(self) -> Option<Value> {
        let tag = self.0.last()?.value.tag();
        Some(Value::Array(tag, self.0.into_iter().map(|rule| rule.value).collect()))
    }
}

impl JoinedRule {
    fn same_name(&self, origin: &str, index: usize) -> Problem {
        let Self { origin: earlier, index: place, .. } = self;
        let text = format!(
            "{earlier} has a rule of this name (rules[{place}]); with replace: true this one stands in \
             its place"
        );
        Problem::invalid(origin.to_owned(), format!("rules[{index}].name"), text)
    }
}

fn name_of(rule: &Value) -> Option<&str> {
    rule.as_dict()?.get("name")?.as_str()
}

fn replaces(rule: &Value) -> bool {
    let given = rule.as_dict().and_then(|rule| rule.get(REPLACE.key));
    given.is_some_and(|given| values::boolean(given).is_ok_and(|(replaces, _)| replaces))
}
