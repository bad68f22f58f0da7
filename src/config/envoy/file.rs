//! Reads a configuration file of envoyproxy/ratelimit: a domain and its tree of descriptors.
//!
//! The file is read as a tree of sections, so problems have a line, and unknown keys are found.
//!
//! **Source:** envoyproxy/ratelimit, "Configuration", with its validation rules.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use figment::value::{Dict, Num, Value};

use super::{Domains, Siblings, TreeSettings, limit, verbatim};
use crate::api::envoy::DynamicMetadata;
use crate::config::problem::{Problem, ProblemKind};
use crate::config::section::Section;
use crate::config::setting::Setting;
use crate::config::sources;
use crate::config::values::{self, Invalid, Read};
use crate::rules::descriptors::{
    Descriptor, DescriptorRequest, DescriptorSpec, Metadata, MetadataValue,
};
use crate::rules::spec::Field;
use crate::rules::{Coupling, Mode, TextPattern};

/// Maximum depth of a tree: more than any request needs, and small enough for recursion.
const MAX_LEVELS: usize = 32;
/// Maximum number of descriptors in one list.
const MAX_DESCRIPTORS_PER_LEVEL: usize = 100_000;

/// What is wrong with a descriptor that has the key and value of another one.
pub(super) const TWICE: &str = "another descriptor of this level has this key and value";

const DOMAIN: Setting = Setting::new("domain", "Domain of the requests; files may share one.");
const DESCRIPTORS: Setting = Setting::new(
    "descriptors",
    "Descriptors of the domain. Each may have descriptors of its own, up to 32 levels deep.",
);
const KEY: Setting = Setting::new("key", "Key of an entry of the request's descriptor.");
const VALUE: Setting = Setting::new(
    "value",
    "Value of the entry; an asterisk is any text. Without it every value matches.",
);
const METADATA: Setting =
    Setting::new("metadata", "Part of dynamic_metadata in responses, with envoy.metadata: true.");
const SHADOW_MODE: Setting =
    Setting::new("shadow-mode", "Decides and counts the limit without enforcing it.");
const QUOTA_MODE: Setting =
    Setting::new("quota-mode", "Denies a request only if all its quotas deny it.");
const DETAILED_METRIC: Setting = Setting::new(
    "detailed-metric",
    "Labels metrics by the request's entries, in place of the rule's.",
);
const VALUE_TO_METRIC: Setting =
    Setting::new("value-to-metric", "Labels metrics by the value of this entry.");
const SHARE_THRESHOLD: Setting =
    Setting::new("share-threshold", "All values that match value share one limit.");

/// Adds the descriptors of a file to the trees of all files. Problems are added to `root`.
pub(super) fn read(file: &Path, domains: &mut Domains, root: &Section<'_>) {
    let text = match std::fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) => return root.add_problem(Problem::unreadable(file, error)),
    };
    let origin = file.display().to_string();
    let syntax = |error: &serde_saphyr::Error| {
        let kind = ProblemKind::Source(sources::reason(error));
        Problem::new(origin.clone(), String::new(), kind)
    };
    let mut dict = match serde_saphyr::from_str::<Option<Dict>>(&text) {
        Ok(dict) => dict.unwrap_or_default(),
        Err(error) => return root.add_problem(syntax(&error)),
    };
    let restored = verbatim::restore(&text, &mut dict);
    let tree = sources::tree_of(origin.clone(), text, dict);
    let mut section = tree.root();
    domain(&mut section, &origin.as_str().into(), domains);
    section.close();
    // Problems of the tree describe a wrong structure better, because they have the key.
    if tree.is_valid()
        && let Err(error) = &restored
    {
        root.add_problem(syntax(error));
    }
    tree.notices().into_iter().for_each(|notice| root.add_notice(notice));
    if let Err(problems) = tree.finish() {
        problems.0.into_iter().map(as_spelled).for_each(|problem| root.add_problem(problem));
    }
}

/// Writes keys with `_`, as these files do.
pub(super) fn as_spelled(mut problem: Problem) -> Problem {
    match &mut problem.kind {
        // Both spellings are those of the file.
        ProblemKind::Twice(_) => return problem,
        ProblemKind::UnknownKey(Some(known)) => *known = known.replace('-', "_"),
        _ => {}
    }
    problem.key = problem.key.replace('-', "_");
    problem
}

/// Reads a file in a survey, which lists its settings.
pub(in crate::config) fn survey(root: &mut Section<'_>) {
    let settings = TreeSettings {
        metadata: DynamicMetadata::Always,
        coupling: Coupling::AllOrNothing,
        calendar_month: false,
        near_limit: Field::Unset,
    };
    let mut domains = Domains { trees: BTreeMap::new(), settings };
    domain(root, &"file".into(), &mut domains);
}

fn domain(section: &mut Section<'_>, file: &Arc<str>, domains: &mut Domains) {
    let name = section.optional(DOMAIN, text);
    let name = name.unwrap_or_default();
    if let Some(bounds) = outside_bounds(&name)
        && section.is_valid()
    {
        section.refuse("domain", Invalid::from_text(bounds));
    }
    let path = DescriptorPath { domain: &name, above: &[], settings: domains.settings, file };
    let level = domains.trees.entry(name.clone()).or_default();
    path.read_level(section, level);
}

/// Returns the bounds of the name of a domain if it is outside of them.
pub(super) fn outside_bounds(domain: &str) -> Option<String> {
    let is_valid = (1..=DescriptorRequest::MAX_DOMAIN).contains(&domain.len());
    (!is_valid).then(|| format!("must be 1 to {} bytes", DescriptorRequest::MAX_DOMAIN))
}

/// The path to a list of descriptors, and settings that apply to the whole file.
pub(super) struct DescriptorPath<'a> {
    pub(super) domain: &'a str,
    pub(super) above: &'a [(String, Option<String>)],
    pub(super) settings: TreeSettings,
    pub(super) file: &'a Arc<str>,
}

impl DescriptorPath<'_> {
    /// Reads the list `descriptors` of a section into `level`.
    pub(super) fn read_level(&self, section: &mut Section<'_>, level: &mut Siblings) {
        let sections = section.list(DESCRIPTORS);
        let (deep, many) =
            (self.above.len() >= MAX_LEVELS, sections.len() > MAX_DESCRIPTORS_PER_LEVEL);
        if (deep && !sections.is_empty()) || many {
            let valid = format!(
                "must have at most {MAX_DESCRIPTORS_PER_LEVEL} entries and {MAX_LEVELS} levels"
            );
            return section.refuse("descriptors", Invalid::from_text(valid));
        }
        for section in sections {
            let descriptor = self.descriptor(section, level);
            level.descriptors.push(descriptor);
        }
    }

    fn descriptor(&self, mut section: Section<'_>, level: &mut Siblings) -> Descriptor {
        let key = section.optional(KEY, text);
        let value = section.optional(VALUE, text).filter(|value| !value.is_empty());
        // A key or value of a wrong type was reported already.
        let is_read = section.is_valid();
        let key = key.unwrap_or_default();
        if key.is_empty() {
            if is_read {
                section.refuse("key", Invalid::new("missing"));
            }
        } else if key.contains('*') {
            section.refuse(
                "key",
                Invalid::new("must be a string without *: only a value may have one"),
            );
        } else if is_read && !level.pairs.insert((key.clone(), value.clone())) {
            section.refuse("key", Invalid::new(TWICE));
        }
        let own_metadata = section.optional(METADATA, read_metadata);
        if own_metadata.is_some() && self.settings.metadata == DynamicMetadata::Never {
            section.warn("metadata", "not sent unless envoy.metadata is true");
        }
        let mut flag = |setting| section.optional(setting, values::boolean).unwrap_or(false);
        let (is_shadow, is_quota) = (flag(SHADOW_MODE), flag(QUOTA_MODE));
        let (is_detailed, value_to_metric) = (flag(DETAILED_METRIC), flag(VALUE_TO_METRIC));
        let shares = flag(SHARE_THRESHOLD);
        let is_pattern = |value: &String| !matches!(TextPattern::new(value), TextPattern::Exact(_));
        if shares && is_read && !value.as_ref().is_some_and(is_pattern) {
            section.refuse("share-threshold", Invalid::new("requires a value with *"));
        }
        let mode = match (is_shadow, is_quota) {
            (true, true) => Mode::ShadowQuota,
            (true, false) => Mode::Shadow,
            (false, true) => Mode::Quota,
            (false, false) => Mode::Enforced,
        };
        let above = [self.above, &[(key.clone(), value.clone())]].concat();
        let below = DescriptorPath { above: &above, ..*self };
        let spec = DescriptorSpec {
            label: below.label(),
            mode,
            is_detailed,
            metadata: own_metadata.filter(|metadata| !metadata.0.is_empty()).map(Arc::new),
            near_limit: self.settings.near_limit,
            file: Arc::clone(self.file),
            ..DescriptorSpec::default()
        };
        let TreeSettings { coupling, calendar_month, .. } = self.settings;
        let rule = limit::read(&mut section, spec, coupling, calendar_month);
        let mut children = Siblings::default();
        below.read_level(&mut section, &mut children);
        section.close();
        let below = children.descriptors;
        Descriptor { key, value, shares, value_to_metric, rule, below }
    }

    fn label(&self) -> String {
        let path = self.above.iter().map(|(key, value)| (key.as_str(), value.as_deref()));
        crate::rules::descriptors::label(self.domain, path)
    }
}

/// Reads any scalar as a string.
fn text(value: &Value) -> Read<String> {
    let text = values::scalar(value).ok_or(Invalid::new("must be a string"))?;
    Ok((text.clone(), text))
}

/// Maximum depth of maps and lists.
const MAX_METADATA_LEVELS: usize = 16;
/// Maximum number of values, including those in nested maps and lists.
const MAX_VALUES: usize = 1_000;

const BOUNDS: Invalid =
    Invalid::new("must be a map of at most 1000 values and 16 levels, without NaN and infinity");

/// Reads the map. It is not shown in the effective configuration.
fn read_metadata(value: &Value) -> Read<Metadata> {
    let Value::Dict(_, dict) = value else { return Err(BOUNDS) };
    let metadata = MetadataReader { values_left: MAX_VALUES }.map(dict, MAX_METADATA_LEVELS);
    metadata.map(|metadata| (metadata, String::new())).ok_or(BOUNDS)
}

struct MetadataReader {
    values_left: usize,
}

impl MetadataReader {
    fn map(&mut self, dict: &Dict, levels_left: usize) -> Option<Metadata> {
        let levels_left = levels_left.checked_sub(1)?;
        let entry = |(name, value): (&String, &Value)| {
            Some((name.clone(), self.value(value, levels_left)?))
        };
        dict.iter().map(entry).collect::<Option<_>>().map(Metadata)
    }

    fn list(&mut self, items: &[Value], levels_left: usize) -> Option<Vec<MetadataValue>> {
        let levels_left = levels_left.checked_sub(1)?;
        items.iter().map(|item| self.value(item, levels_left)).collect()
    }

    fn value(&mut self, value: &Value, levels_left: usize) -> Option<MetadataValue> {
        self.values_left = self.values_left.checked_sub(1)?;
        Some(match value {
            Value::Empty(..) => MetadataValue::Null,
            Value::Bool(_, boolean) => MetadataValue::Boolean(*boolean),
            Value::String(_, text) => MetadataValue::Text(text.clone()),
            Value::Char(_, character) => MetadataValue::Text(character.to_string()),
            Value::Num(_, number) => MetadataValue::Number(finite(*number)?),
            Value::Array(_, items) => MetadataValue::List(self.list(items, levels_left)?),
            Value::Dict(_, dict) => MetadataValue::Map(self.map(dict, levels_left)?),
        })
    }
}

/// Converts a number to a JSON number. Large integers lose digits, as in envoyproxy/ratelimit.
#[expect(clippy::cast_precision_loss, reason = "numbers in a Struct are f64")]
fn finite(number: Num) -> Option<f64> {
    let whole = number.to_u128().map(|whole| whole as f64);
    let whole = whole.or_else(|| number.to_i128().map(|whole| whole as f64));
    whole.or_else(|| number.to_f64()).filter(|number| number.is_finite())
}
