//! Explanations of requests by user, resource and attributes.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::{
    AppliedRule, Applies, ExplainedRule, MAX_RULES, MAX_WANTED, Mismatch, Nearness, cut,
    shared_start, units_taken,
};
use crate::plan::{Plan, RuleIndex, SelectedKey};
use crate::rules::{Matcher, Mode, Pattern, Request, RuleSet, TextPattern};

/// Why each rule applies to a request, or does not.
#[derive(Clone, Debug)]
pub struct Explanation {
    /// The plan of a check of this request.
    pub plan: Plan,
    /// The keys of its hits, in order.
    pub keys: Vec<SelectedKey>,
    /// Rules that were looked at, at most [`MAX_RULES`]: those that apply in the order of the plan,
    /// those that are off, the default rule if it does not apply, then the nearest of those that do not fit.
    pub rules: Vec<ExplainedRule>,
    /// Number of rules that were looked at and are not in `rules`.
    pub left_out: usize,
}

impl RuleSet {
    /// Explains which rules apply to a request, and why the others do not.
    ///
    /// Of two rules that do not fit, the one with fewer parts that do not fit is nearer; of equally
    /// many, the one with more parts that fit, then the one whose pattern shares the longer start
    /// with the value of the request, then the first by name.
    ///
    /// ```
    /// use rlaas_core::algorithm::{Algorithm, Limit};
    /// use rlaas_core::clock::Micros;
    /// use rlaas_core::explain::Applies;
    /// use rlaas_core::rules::{Matcher, Part, Pattern, Request, Rule, RuleSet};
    ///
    /// let default = Rule::new_default(Algorithm::Gcra, Limit::new(5, Micros::from_secs(60))?);
    /// let matcher = Matcher { patterns: vec![(Part::Resource, Pattern::one("/pay"))] };
    /// let pay = Rule { name: "pay".into(), matcher, ..default.clone() };
    ///
    /// let explanation = RuleSet::new(default, vec![pay])
    ///     .explain(&Request::user("alice").resource("/pays").build()?);
    /// assert!(matches!(explanation.rules[0].applies, Applies::Yes(_)));
    /// assert_eq!(explanation.keys[0].hit.key.id(), "alice");
    /// let Applies::Mismatch(mismatch) = &explanation.rules[1].applies else { panic!("it applies") };
    /// assert_eq!((&*mismatch.part, &*mismatch.wanted[0]), ("resource", "/pay"));
    /// assert_eq!(mismatch.got.as_deref(), Some("/pays"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn explain(&self, request: &Request<'_>) -> Explanation {
        let plan = Plan::for_request(self, request);
        let mut applying: Vec<usize> = plan.hits.iter().filter_map(|hit| flat(hit.rule)).collect();
        let of_hits = plan.hits.iter().zip(&applying);
        let hashing = self.hashing();
        let keys =
            of_hits.clone().map(|(hit, at)| self.selected(*at, request, hit.clone(), hashing));
        let keys = keys.collect();
        let applied = of_hits.take(MAX_RULES).enumerate().map(|(at, (hit, position))| {
            let closest = self.rule_at(*position).closest_override(request);
            let rule_override = closest.map(|(position, _)| position);
            let (cost, headroom) = (units_taken(hit), hit.headroom);
            let applied = AppliedRule { hit: at, cost, rule_override, headroom };
            explained(*position, Applies::Yes(applied))
        });
        let mut rules: Vec<ExplainedRule> = applied.collect();
        self.for_each_match(request, |position, rule| {
            if rule.mode == Mode::Off {
                applying.push(position);
                if rules.len() < MAX_RULES {
                    rules.push(explained(position, Applies::Off));
                }
            }
        });
        applying.sort_unstable();
        if applying.first() != Some(&0) && rules.len() < MAX_RULES {
            rules.push(explained(0, Applies::NotDefault));
        }
        let mut nearest = Nearest::new(MAX_RULES - rules.len());
        for (position, rule) in self.iter().enumerate().skip(1) {
            if applying.binary_search(&position).is_err() {
                nearest.offer(Nearness::new(&rule.matcher, request), position);
            }
        }
        rules.extend(nearest.into_positions().filter_map(|position| {
            let mismatch = mismatch(&self.rule_at(position).matcher, request)?;
            Some(explained(position, Applies::Mismatch(mismatch)))
        }));
        let left_out = self.iter().count() - rules.len();
        Explanation { plan, keys, rules, left_out }
    }
}

fn flat(rule: RuleIndex) -> Option<usize> {
    match rule {
        RuleIndex::Flat(position) => Some(position),
        RuleIndex::Descriptor { .. } => None,
    }
}

fn explained(position: usize, applies: Applies) -> ExplainedRule {
    ExplainedRule { rule: RuleIndex::Flat(position), applies }
}

/// The nearest rules so far, up to a number.
struct Nearest {
    /// The farthest is on top.
    heap: BinaryHeap<Reverse<(Nearness, Reverse<usize>)>>,
    max: usize,
}

impl Nearest {
    fn new(max: usize) -> Self {
        Self { heap: BinaryHeap::with_capacity(max + 1), max }
    }

    fn offer(&mut self, nearness: Nearness, position: usize) {
        self.heap.push(Reverse((nearness, Reverse(position))));
        if self.heap.len() > self.max {
            self.heap.pop();
        }
    }

    /// Returns the positions, the nearest first.
    fn into_positions(self) -> impl Iterator<Item = usize> {
        self.heap.into_sorted_vec().into_iter().map(|Reverse((_, Reverse(position)))| position)
    }
}

/// Returns the first part that does not fit; `None` if all fit.
fn mismatch(matcher: &Matcher, request: &Request<'_>) -> Option<Mismatch> {
    let (part, pattern) = matcher
        .patterns
        .iter()
        .find(|(part, pattern)| pattern.fit(part.value_in(request)).is_none())?;
    let got = part.value_in(request);
    let wanted = match pattern {
        Pattern::Present => vec!["*".to_owned()],
        Pattern::OneOf(texts) => wanted(texts, got.unwrap_or_default()),
    };
    Some(Mismatch { part: cut(part.to_string()), wanted, got: got.map(str::to_owned) })
}

/// Returns the texts that are most like the value.
fn wanted(texts: &[TextPattern], value: &str) -> Vec<String> {
    let mut texts: Vec<_> = texts.iter().map(|text| (text, shared_start(text, value))).collect();
    // Stable: texts that are equally like the value stay in order.
    texts.sort_by_key(|(_, shared)| Reverse(*shared));
    texts.into_iter().take(MAX_WANTED).map(|(text, _)| cut(text.to_text())).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::algorithm::{Algorithm, Cost, Limit};
    use crate::clock::Micros;
    use crate::explain::MAX_TEXT;
    use crate::rules::{Grant, Override, Part, Rule, Unmatched};

    fn limit(units: u64) -> Limit {
        Limit::new(units, Micros::from_secs(60)).expect("a valid limit")
    }

    fn rule(name: &str, patterns: &[(Part, &str)]) -> Rule {
        let mut rule = Rule::new_default(Algorithm::Gcra, limit(5));
        rule.name = name.into();
        rule.matcher = matcher(patterns);
        rule
    }

    fn matcher(patterns: &[(Part, &str)]) -> Matcher {
        let parse = |(part, text): &(Part, &str)| {
            let texts: Vec<String> = text.split('|').map(str::to_owned).collect();
            (part.clone(), Pattern::any_of(&texts))
        };
        Matcher { patterns: patterns.iter().map(parse).collect() }
    }

    fn plan(text: &str) -> (Part, &str) {
        (Part::Attribute("plan".to_owned()), text)
    }

    fn resource(text: &str) -> (Part, &str) {
        (Part::Resource, text)
    }

    fn set(named: Vec<Rule>) -> RuleSet {
        RuleSet::new(Rule::new_default(Algorithm::Gcra, limit(5)), named)
    }

    fn names(rules: &RuleSet, explanation: &Explanation) -> Vec<String> {
        let name = |of: &ExplainedRule| rules.rule(of.rule).name.to_string();
        explanation.rules.iter().map(name).collect()
    }

    fn mismatch_of(explanation: &Explanation, at: usize) -> &Mismatch {
        match &explanation.rules[at].applies {
            Applies::Mismatch(mismatch) => mismatch,
            other => panic!("{other:?}"),
        }
    }

    fn applied(explanation: &Explanation, at: usize) -> AppliedRule {
        match &explanation.rules[at].applies {
            Applies::Yes(applied) => *applied,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn first_part_that_does_not_fit_is_named() {
        let rules = set(vec![rule("pay", &[resource("/v1/pay"), plan("free|trial")])]);
        let pairs = [("plan", "paid")];
        let request = Request::user("a").resource("/v1/pay").attributes(&pairs).build();
        let explanation = rules.explain(&request.expect("a valid request"));
        assert_eq!(names(&rules, &explanation), ["default", "pay"]);
        let expected = Mismatch {
            part: "attributes.plan".to_owned(),
            wanted: vec!["free".to_owned(), "trial".to_owned()],
            got: Some("paid".to_owned()),
        };
        assert_eq!(mismatch_of(&explanation, 1), &expected);

        let explanation = rules.explain(&Request::user("a").build().expect("a valid request"));
        let Mismatch { part, wanted, got } = mismatch_of(&explanation, 1);
        assert_eq!(
            (&**part, &**wanted, got.as_deref()),
            ("resource", &["/v1/pay".into()][..], Some(""))
        );
    }

    #[test]
    fn absent_part_has_no_value() {
        let rules = set(vec![rule("present", &[plan("*")])]);
        let explanation = rules.explain(&Request::user("a").build().expect("a valid request"));
        let Mismatch { wanted, got, .. } = mismatch_of(&explanation, 1);
        assert_eq!((&**wanted, got), (&["*".to_owned()][..], &None));
    }

    #[test]
    fn nearest_rules_come_first() {
        let rules = set(vec![
            rule("a-two-parts", &[resource("/v1/pay"), plan("free")]),
            rule("b-far", &[resource("/other")]),
            rule("c-near", &[resource("/v1/pays")]),
            rule("d-wildcard", &[resource("/v1/pa*-x")]),
            rule("e-one-of-two", &[plan("free"), resource("/v2")]),
        ]);
        let pairs = [("plan", "free")];
        let request = Request::user("a").resource("/v1/payments").attributes(&pairs).build();
        let explanation = rules.explain(&request.expect("a valid request"));
        let expected = ["default", "a-two-parts", "e-one-of-two", "c-near", "d-wildcard", "b-far"];
        assert_eq!(names(&rules, &explanation), expected);
        assert_eq!(explanation.left_out, 0);
    }

    #[test]
    fn closest_override_is_named() {
        let mut pay = rule("pay", &[]);
        let grant = |units| Grant::Limited(limit(units));
        pay.overrides = vec![
            Override::new(matcher(&[(Part::UserId, "al*")]), grant(7)),
            Override::new(matcher(&[(Part::UserId, "alice")]), grant(9)),
            Override::new(matcher(&[(Part::UserId, "alice")]), Grant::Banned),
        ];
        let rules = set(vec![pay]);
        for (user, expected, grant) in [
            ("alice", Some(2), Grant::Banned),
            ("alan", Some(0), grant(7)),
            ("bob", None, grant(5)),
        ] {
            let explanation = rules.explain(&Request::user(user).build().expect("a request"));
            let applied = applied(&explanation, 0);
            assert_eq!((applied.hit, applied.rule_override), (0, expected), "{user}");
            assert_eq!(applied.cost, Cost::ONE, "{user}");
            assert_eq!(explanation.keys[0].hit.grant, grant, "{user}");
            assert_eq!(explanation.plan.hits[0].grant, grant, "{user}");
        }
    }

    #[test]
    fn default_rule_applies_beside_shadow_rules_and_by_policy_only() {
        let mut shadow = rule("shadow", &[]);
        shadow.mode = Mode::Shadow;
        let rules = set(vec![shadow]);
        let request = Request::user("a").build().expect("a valid request");
        let explanation = rules.explain(&request);
        assert_eq!(names(&rules, &explanation), ["shadow", "default"]);
        assert_eq!(applied(&explanation, 1).hit, 1);
        for policy in [Unmatched::Allow, Unmatched::Deny] {
            let explanation = rules.clone().with_unmatched(policy).explain(&request);
            assert!(!explanation.plan.is_unmatched && explanation.plan.refuses_nothing());
            assert!(matches!(explanation.rules[1].applies, Applies::NotDefault));
        }
    }

    #[test]
    fn explanation_is_bounded_with_10_000_rules() {
        let long = "x".repeat(5_000);
        let texts: Vec<String> = (0..30).map(|text| format!("/v{text}/{long}")).collect();
        let texts = texts.join("|");
        let mut named: Vec<Rule> = (0..10_000)
            .map(|index| rule(&format!("rule-{index:05}"), &[resource(&format!("/v1/{index}"))]))
            .collect();
        named.extend((0..10).map(|index| rule(&format!("long-{index}"), &[resource(&texts)])));
        named.extend((0..150).map(|index| rule(&format!("applies-{index:03}"), &[])));
        let rules = set(named);
        let request = Request::user("a").resource("/v1/77").build().expect("a valid request");
        let explanation = rules.explain(&request);
        assert_eq!((explanation.rules.len(), explanation.left_out), (100, 10_061));
        assert_eq!(explanation.plan.hits.len(), 151);

        let rules = set(rules
            .iter()
            .skip(1)
            .filter(|rule| !rule.name.starts_with("app"))
            .cloned()
            .collect());
        let request = Request::user("a").resource("/v7/").build().expect("a valid request");
        let explanation = rules.explain(&request);
        assert_eq!((explanation.rules.len(), explanation.left_out), (100, 9_911));
        let Mismatch { wanted, .. } = mismatch_of(&explanation, 1);
        assert_eq!(wanted.len(), MAX_WANTED);
        assert!(wanted.iter().all(|text| text.len() <= MAX_TEXT));
        assert!(wanted[0].starts_with("/v7/xx"), "{}", wanted[0]);
    }

    /// Rules of few texts, so that many match.
    fn some_rules() -> impl Strategy<Value = RuleSet> {
        let pattern = prop_oneof!["[ab]", "[ab]\\*", Just("*".to_owned()), "a\\|b"];
        let part = prop_oneof![
            Just(Part::UserId),
            Just(Part::Resource),
            Just(Part::Attribute("plan".to_owned()))
        ];
        let patterns = prop::collection::btree_map(part, pattern, 0..3);
        let named = prop::collection::vec((patterns, 0..3_usize), 0..6);
        (named, 0..3_usize).prop_map(|(named, unmatched)| {
            let named = named.into_iter().enumerate().map(|(index, (patterns, mode))| {
                let patterns: Vec<_> =
                    patterns.iter().map(|(part, text)| (part.clone(), text.as_str())).collect();
                let mut rule = rule(&format!("r{index}"), &patterns);
                rule.mode = [Mode::Enforced, Mode::Shadow, Mode::Off][mode];
                rule
            });
            set(named.collect()).with_unmatched(Unmatched::ALL[unmatched])
        })
    }

    proptest! {
        #[test]
        fn applying_rules_are_those_of_the_plan(
            rules in some_rules(), user in "[abc]", resource in "[abc]?", plan in prop::option::of("[abc]")
        ) {
            let pairs: Vec<_> = plan.iter().map(|plan| ("plan", plan.as_str())).collect();
            let request = Request::user(&user).resource(&resource).attributes(&*pairs).build();
            let request = request.expect("a valid request");
            let explanation = rules.explain(&request);
            let plan = Plan::for_request(&rules, &request);
            prop_assert_eq!(explanation.rules.len(), rules.iter().count());
            for (at, explained) in explanation.rules.iter().enumerate() {
                let hit = plan.hits.iter().position(|hit| hit.rule == explained.rule);
                match &explained.applies {
                    Applies::Yes(AppliedRule { hit: of, .. }) => {
                        prop_assert_eq!((Some(*of), at), (hit, *of));
                        prop_assert_eq!(&explanation.keys[*of].hit.key, &plan.hits[*of].key);
                    }
                    Applies::NotDefault => {
                        prop_assert_eq!((hit, explained.rule), (None, RuleIndex::Flat(0)));
                    }
                    Applies::Mismatch(mismatch) => {
                        prop_assert!(hit.is_none());
                        let of: Vec<_> = mismatch.wanted.iter().map(|text| Pattern::one(text)).collect();
                        let got = mismatch.got.as_deref();
                        prop_assert!(of.iter().all(|one| one.fit(got).is_none()));
                    }
                    Applies::Off => {
                        prop_assert!(hit.is_none());
                        prop_assert_eq!(rules.rule(explained.rule).mode, Mode::Off);
                    }
                    Applies::Replaced => prop_assert!(false, "only of descriptors"),
                }
            }
        }
    }
}
