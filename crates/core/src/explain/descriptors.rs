//! Explanations of requests by descriptors.

use std::cmp::Ordering;

use smallvec::SmallVec;

use super::{Applies, ExplainedRule, cut, start};
use crate::plan::DescriptorPlan;
use crate::rules::descriptors::{Choice, DescriptorRequest, Descriptors, InvalidDescriptor};

/// Most texts in [`ExplainedDescriptor::nearest`].
pub const MAX_NEAREST: usize = 10;
/// Bytes of a text that are compared to find the nearest.
const MAX_COMPARED: usize = 64;

/// Why each descriptor of a request meets a limit, or none.
#[derive(Clone, Debug)]
pub struct ExplainedDescriptors {
    /// The plan of a check of this request.
    pub plan: DescriptorPlan,
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

impl Descriptors {
    /// Explains which rule each descriptor of a request matches. `similarity` of two texts is 0 to
    /// 1; it sorts [`ExplainedDescriptor::nearest`].
    ///
    /// # Errors
    ///
    /// [`InvalidDescriptor`] as [`Descriptors::plan`].
    pub fn explain(
        &self,
        request: &DescriptorRequest<'_>,
        similarity: impl Fn(&str, &str) -> f64,
    ) -> Result<ExplainedDescriptors, InvalidDescriptor> {
        let plan = self.plan(request)?;
        let mut hits = 0;
        let explain = |(index, descriptor)| {
            let walk = self.explain_walk(request.domain(), descriptor);
            let nearest = match &walk.rule {
                Some(_) => Vec::new(),
                None => nearest_first(walk.choices, walk.ended_at, &similarity),
            };
            let is_planned = plan.statuses.get(index).is_some_and(Option::is_some);
            let rule = walk.rule.map(|rule| {
                let applies = if is_planned {
                    hits += 1;
                    Applies::Yes { hit: hits - 1, rule_override: None }
                } else {
                    Applies::Replaced
                };
                ExplainedRule { rule, applies }
            });
            ExplainedDescriptor { rule, matched_entries: walk.matched_entries, nearest }
        };
        let descriptors = request.descriptors().iter().enumerate().map(explain).collect();
        Ok(ExplainedDescriptors { plan, descriptors })
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
        |one: &str, other: &str| similarity(start(one, MAX_COMPARED), start(other, MAX_COMPARED));
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
        let at = nearest.partition_point(|other| order(other, &candidate) == Ordering::Less);
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

/// Orders candidates: the most similar first, then by text.
fn order<T: Ord>(one: &(f64, T), other: &(f64, T)) -> Ordering {
    other.0.total_cmp(&one.0).then_with(|| one.1.cmp(&other.1))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::algorithm::Cost;
    use crate::plan::RuleIndex;
    use crate::rules::Coupling;
    use crate::rules::descriptors::{Descriptor, DescriptorRule, HitsAddend, RequestDescriptor};

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
        tree().explain(&request.expect("a valid request"), shared_start).expect("an explanation")
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
            let expected = ExplainedDescriptor {
                rule: None,
                matched_entries: matched,
                nearest: nearest.iter().map(|text| (*text).to_owned()).collect(),
            };
            assert_eq!(explained.descriptors, [expected], "{entries:?}");
        }
    }

    #[test]
    fn unknown_domain_has_the_nearest_domains() {
        let explained = explain("edges", &[&[("user", "a")], &[]]);
        for descriptor in explained.descriptors {
            assert_eq!((descriptor.matched_entries, descriptor.rule), (0, None));
            assert_eq!(descriptor.nearest, ["edge", "other"]);
        }
    }

    #[test]
    fn replaced_limits_are_told_from_those_that_apply() {
        let get: &[_] = &[("path", "/pay"), ("method", "GET")];
        let post: &[_] = &[("path", "/pay"), ("method", "POST")];
        let explained = explain("edge", &[get, &[("nobody", "")], post]);
        let applies: Vec<_> = explained
            .descriptors
            .iter()
            .map(|descriptor| descriptor.rule.as_ref().map(|rule| rule.applies.clone()))
            .collect();
        let yes = Applies::Yes { hit: 0, rule_override: None };
        assert_eq!(applies, [Some(Applies::Replaced), None, Some(yes)]);
        assert_eq!(explained.descriptors[0].matched_entries, 2);
        assert_eq!(explained.plan.plan.hits.len(), 1);
        let rule = explained.descriptors[2].rule.as_ref().expect("a rule").rule;
        assert_eq!(rule, explained.plan.plan.hits[0].rule);
        assert!(matches!(rule, RuleIndex::Descriptor { is_override: false, .. }));
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
