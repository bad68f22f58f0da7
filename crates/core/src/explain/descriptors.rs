//! Explanations of requests by descriptors.

use std::cmp::Ordering;

use smallvec::SmallVec;

use super::{AppliedRule, Applies, ExplainedRule, cut, start, units_taken};
use crate::plan::{DescriptorPlan, SelectedKey};
use crate::rules::descriptors::{Choice, DescriptorRequest, InvalidDescriptor};
use crate::rules::{Mode, RuleSet};

/// Most texts in [`ExplainedDescriptor::nearest`].
pub const MAX_NEAREST: usize = 10;
/// Bytes of a text that are compared to find the nearest.
const MAX_COMPARED: usize = 64;

/// Why each descriptor of a request meets a limit, or none.
#[derive(Clone, Debug)]
pub struct ExplainedDescriptors {
    /// The plan of a check of this request.
    pub plan: DescriptorPlan,
    /// The keys of its hits, in order.
    pub keys: Vec<SelectedKey>,
    /// One entry for each descriptor, in order.
    pub descriptors: Vec<ExplainedDescriptor>,
}

/// Why a descriptor meets a limit, or none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExplainedDescriptor {
    /// The rule at the end of the walk; `None` if there is none: the descriptor passes.
    pub rule: Option<ExplainedRule>,
    /// Number of entries that were found in the tree, from the first on.
    pub matched_entries: usize,
    /// Where there is no rule: `KEY` or `KEY=VALUE` of what stands at the level at which the walk
    /// ended, nearest first, at most [`MAX_NEAREST`]. If the domain is unknown, the nearest domains.
    pub nearest: Vec<String>,
}

impl RuleSet {
    /// Explains which rule each descriptor of a request matches. `similarity` of two texts is 0 to
    /// 1; it sorts [`ExplainedDescriptor::nearest`].
    ///
    /// # Errors
    ///
    /// [`InvalidDescriptor`] as
    /// [`Descriptors::plan`](crate::rules::descriptors::Descriptors::plan).
    pub fn explain_descriptors(
        &self,
        request: &DescriptorRequest<'_>,
        similarity: impl Fn(&str, &str) -> f64,
    ) -> Result<ExplainedDescriptors, InvalidDescriptor> {
        let plan = self.descriptors().plan(request)?;
        let mut hits = plan.plan.hits.iter().enumerate();
        let mut descriptors = Vec::with_capacity(plan.statuses.len());
        for (descriptor, status) in request.descriptors().iter().zip(&plan.statuses) {
            let walk = self.descriptors().explain_walk(request.domain(), descriptor);
            let nearest = match &walk.rule {
                Some(_) => Vec::new(),
                None => nearest_first(walk.choices, walk.ended_at, &similarity),
            };
            let planned = status.as_ref().and_then(|_| hits.next());
            let rule = walk.rule.map(|rule| {
                let applies = match planned {
                    Some((at, hit)) => {
                        let cost = units_taken(hit);
                        Applies::Yes(AppliedRule {
                            hit: at,
                            cost,
                            rule_override: None,
                            headroom: None,
                        })
                    }
                    None if self.rule(rule).mode == Mode::Off => Applies::Off,
                    None => Applies::Replaced,
                };
                ExplainedRule { rule, applies }
            });
            let matched_entries = walk.matched_entries;
            descriptors.push(ExplainedDescriptor { rule, matched_entries, nearest });
        }
        let keys = plan.plan.hits.iter().map(|hit| self.selected_by_descriptor(hit.clone()));
        let keys = keys.collect();
        Ok(ExplainedDescriptors { plan, keys, descriptors })
    }
}

/// Returns the choices as `KEY` or `KEY=VALUE`, those first that are most similar to the wanted one:
/// of the same key by their values, then the others by their keys. Without a wanted one, and where
/// they are equally similar, they are sorted by text.
fn nearest_first<'a>(
    choices: impl IntoIterator<Item = Choice<'a>>,
    wanted: Option<Choice<'_>>,
    similarity: impl Fn(&str, &str) -> f64,
) -> Vec<String> {
    let similarity =
        |text: &str, other: &str| similarity(start(text, MAX_COMPARED), start(other, MAX_COMPARED));
    let score = |(key, value): Choice<'_>| match wanted {
        None => 0.0,
        Some((wanted, _)) if wanted != key => similarity(key, wanted),
        Some((_, wanted)) => {
            1.0 + similarity(value.unwrap_or_default(), wanted.unwrap_or_default())
        }
    };
    let mut nearest: SmallVec<[(f64, Choice<'a>); MAX_NEAREST]> = SmallVec::new();
    for choice in choices {
        let candidate = (score(choice), choice);
        let at = nearest.partition_point(|(score, choice)| {
            let order = candidate.0.total_cmp(score).then_with(|| choice.cmp(&candidate.1));
            order == Ordering::Less
        });
        if at < MAX_NEAREST {
            nearest.truncate(MAX_NEAREST - 1);
            nearest.insert(at, candidate);
        }
    }
    let text = |(_, (key, value)): (f64, Choice<'_>)| match value {
        Some(value) => cut(format!("{key}={value}")),
        None => cut(key.to_owned()),
    };
    nearest.into_iter().map(text).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::algorithm::{Algorithm, Cost, Limit};
    use crate::clock::Micros;
    use crate::rules::descriptors::{
        Descriptor, DescriptorRule, Descriptors, HitsAddend, RequestDescriptor,
    };
    use crate::rules::{Coupling, Rule};

    fn rule(limit_name: Option<&str>, replaces: &[&str]) -> DescriptorRule {
        DescriptorRule {
            limit_name: limit_name.map(Arc::from),
            replaces: replaces.iter().map(|name| Arc::from(*name)).collect(),
            ..DescriptorRule::for_domain("edge.path")
        }
    }

    fn node(key: &str, value: Option<&str>, rule: Option<DescriptorRule>) -> Descriptor {
        let (key, value) = (key.to_owned(), value.map(str::to_owned));
        Descriptor { key, value, shares: false, value_to_metric: false, rule, below: Vec::new() }
    }

    fn tree() -> Descriptors {
        let path = Descriptor {
            below: vec![
                node("method", Some("GET"), Some(rule(Some("get"), &[]))),
                node("method", Some("POST"), Some(rule(Some("post"), &["get"]))),
            ],
            ..node("path", Some("/pay"), None)
        };
        let tops = vec![
            path,
            node("path", Some("/search*"), Some(rule(None, &[]))),
            node("user", None, Some(rule(None, &[]))),
        ];
        let other = vec![node("user", None, Some(rule(None, &[])))];
        Descriptors::new(
            vec![("edge".to_owned(), tops), ("other".to_owned(), other)],
            Coupling::AllOrNothing,
        )
    }

    fn rules() -> RuleSet {
        let limit = Limit::new(5, Micros::from_secs(60)).expect("a valid limit");
        let default = Rule::new_default(Algorithm::Gcra, limit);
        RuleSet::new(default, Vec::new()).with_descriptors(tree())
    }

    /// A similarity that tests can foresee: the share of the first text that is the start of both.
    fn shared_start(one: &str, other: &str) -> f64 {
        let shared = one.bytes().zip(other.bytes()).take_while(|(one, other)| one == other).count();
        f64::from(u32::try_from(shared).expect("short")) / 100.0
    }

    fn explain(domain: &str, descriptors: &[&[(&str, &str)]]) -> ExplainedDescriptors {
        let descriptors = descriptors.iter().map(|entries| RequestDescriptor {
            entries: entries.iter().copied().collect(),
            limit: None,
            hits: HitsAddend::Take(Cost::ONE),
        });
        let request = DescriptorRequest::new(domain, descriptors.collect());
        rules()
            .explain_descriptors(&request.expect("a valid request"), shared_start)
            .expect("an explanation")
    }

    #[test]
    fn walk_ends_where_an_entry_is_unknown() {
        for (entries, matched, nearest) in [
            (&[("path", "/pays")][..], 0, &["path=/pay", "path=/search*", "user"][..]),
            (&[("paths", "/pay")], 0, &["path=/pay", "path=/search*", "user"]),
            (&[("path", "/pay"), ("method", "POSTS")], 1, &["method=POST", "method=GET"]),
            (&[("path", "/pay")], 1, &["method=GET", "method=POST"]),
            (&[("user", "a"), ("more", "b")], 1, &[]),
            (&[], 0, &["path=/pay", "path=/search*", "user"]),
        ] {
            let explained = explain("edge", &[entries]);
            let [descriptor] = &*explained.descriptors else { panic!("{explained:?}") };
            assert!(descriptor.rule.is_none(), "{entries:?}");
            assert_eq!(descriptor.matched_entries, matched, "{entries:?}");
            assert_eq!(descriptor.nearest, nearest, "{entries:?}");
        }
    }

    #[test]
    fn unknown_domain_has_the_nearest_domains() {
        let explained = explain("edges", &[&[("user", "a")], &[]]);
        for descriptor in explained.descriptors {
            assert!(descriptor.matched_entries == 0 && descriptor.rule.is_none());
            assert_eq!(descriptor.nearest, ["edge", "other"]);
        }
    }

    #[test]
    fn replaced_limits_are_told_from_those_that_apply() {
        let get: &[_] = &[("path", "/pay"), ("method", "GET")];
        let post: &[_] = &[("path", "/pay"), ("method", "POST")];
        let explained = explain("edge", &[get, &[("nobody", "")], post]);
        let rule = |at: usize| explained.descriptors[at].rule.as_ref();
        assert!(matches!(rule(0).expect("a rule").applies, Applies::Replaced));
        assert!(rule(1).is_none());
        let applied = AppliedRule { hit: 0, cost: Cost::ONE, rule_override: None, headroom: None };
        assert_eq!(rule(2).expect("a rule").applies, Applies::Yes(applied));
        let [key] = &*explained.keys else { panic!("{explained:?}") };
        assert_eq!((&*key.rule, key.parts[1].value.as_deref()), ("edge.path", Some("POST")));
        assert_eq!(explained.descriptors[0].matched_entries, 2);
        assert_eq!(explained.plan.plan.hits.len(), 1);
        assert_eq!(rule(2).expect("a rule").rule, explained.plan.plan.hits[0].rule);
    }

    #[test]
    fn nearest_are_bounded_in_number_and_length() {
        let values: Vec<String> =
            (0..1_000).map(|at| format!("{at:04}{}", "é".repeat(2_000))).collect();
        let choices = values.iter().map(|value| ("key", Some(value.as_str())));
        let nearest = nearest_first(choices, Some(("key", Some("0500"))), shared_start);
        assert_eq!(nearest.len(), MAX_NEAREST);
        assert!(
            nearest[0].starts_with("key=0500é") && nearest[1].starts_with("key=0501"),
            "{nearest:?}"
        );
        assert!(nearest.iter().all(|text| text.len() <= crate::explain::MAX_TEXT));
    }
}
