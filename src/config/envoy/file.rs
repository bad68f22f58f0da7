//! One file of envoyproxy/ratelimit, read as it is: a domain and its tree of descriptors.
//!
//! It is read twice from one text: as a tree of sections, which knows where every value stands and
//! what is not known; and for keys and values as they are written, since `value: 007` is a text.
//!
//! **Source:** envoyproxy/ratelimit, "Configuration", with its rules of what is not valid.

use std::path::Path;

use serde::Deserialize;

use super::{Domains, Siblings, limit};
use crate::config::problem::Problem;
use crate::config::section::Section;
use crate::config::sources;
use crate::config::values::{self, Invalid};
use crate::rules::Mode;
use crate::rules::descriptors::{Descriptor, DescriptorRequest};

/// Levels of a tree: more than any request means, and few enough to walk.
const MOST_LEVELS: usize = 32;
/// Descriptors of one level.
const MOST: usize = 100_000;

/// What has to be read as it is written.
#[derive(Default, Deserialize)]
struct FileText {
    domain: Option<String>,
    #[serde(default)]
    descriptors: Option<Vec<DescriptorText>>,
}

#[derive(Default, Deserialize)]
struct DescriptorText {
    key: Option<String>,
    value: Option<String>,
    #[serde(default)]
    descriptors: Option<Vec<DescriptorText>>,
}

/// Reads a file into the trees of all; notes what is wrong with it.
pub(super) fn read(file: &Path, domains: &mut Domains, root: &Section<'_>) {
    let unreadable = |error: std::io::Error| Problem::Unreadable {
        file: file.to_owned(),
        reason: error.to_string(),
    };
    let text = match std::fs::read_to_string(file).map_err(unreadable) {
        Ok(text) => text,
        Err(problem) => return root.note(problem),
    };
    let origin = file.display().to_string();
    let tree = sources::tree_of(origin.clone(), &text);
    let mut section = tree.root();
    if section.is_sound() {
        match serde_saphyr::from_str::<Option<FileText>>(&text) {
            Ok(texts) => domain(&mut section, texts.unwrap_or_default(), &origin, domains),
            Err(error) => {
                section.note(Problem::Syntax { origin, reason: sources::reason(&error) });
            }
        }
    }
    section.close();
    if let Err(problems) = tree.finish() {
        problems.0.into_iter().map(as_spelled).for_each(|problem| root.note(problem));
    }
}

/// Keys of these files have `_`.
fn as_spelled(problem: Problem) -> Problem {
    match problem {
        Problem::Invalid { origin, key, valid } => {
            Problem::Invalid { origin, key: key.replace('-', "_"), valid }
        }
        Problem::UnknownKey { origin, key, suggestion } => {
            let suggestion = suggestion.map(|known| known.replace('-', "_"));
            Problem::UnknownKey { origin, key, suggestion }
        }
        other => other,
    }
}

fn domain(section: &mut Section<'_>, texts: FileText, origin: &str, domains: &mut Domains) {
    section.know(&["domain"]);
    let name = texts.domain.unwrap_or_default();
    if !(1..=DescriptorRequest::MAX_DOMAIN).contains(&name.len()) {
        let valid = format!("valid is 1 to {} bytes", DescriptorRequest::MAX_DOMAIN);
        section.note(Problem::Invalid { origin: origin.to_owned(), key: "domain".into(), valid });
    }
    let level = domains.0.entry(name.clone()).or_default();
    let path = Trail { domain: &name, above: &[] };
    path.read_level(section, texts.descriptors.unwrap_or_default(), level);
}

/// The way to a level.
struct Trail<'a> {
    domain: &'a str,
    above: &'a [(String, Option<String>)],
}

impl Trail<'_> {
    /// Reads what is below `descriptors` into a level.
    fn read_level(
        &self,
        section: &mut Section<'_>,
        texts: Vec<DescriptorText>,
        level: &mut Siblings,
    ) {
        let sections = section.list("descriptors");
        let (deep, many) = (self.above.len() >= MOST_LEVELS, sections.len() > MOST);
        if (deep && !sections.is_empty()) || many {
            let valid = format!("valid is up to {MOST} of them, {MOST_LEVELS} levels deep");
            return section.refuse("descriptors", Invalid(valid.into()));
        }
        for (section, text) in sections.into_iter().zip(texts) {
            let descriptor = self.descriptor(section, text, level);
            level.descriptors.push(descriptor);
        }
    }

    fn descriptor(
        &self,
        mut section: Section<'_>,
        text: DescriptorText,
        level: &mut Siblings,
    ) -> Descriptor {
        section.know(&["key", "value", "metadata"]);
        let key = text.key.unwrap_or_default();
        let value = text.value.filter(|value| !value.is_empty());
        if key.is_empty() {
            section.refuse("key", Invalid::new("missing"));
        } else if key.contains('*') {
            section.refuse("key", Invalid::new("valid is a text without *, which values may have"));
        } else if !level.taken.insert((key.clone(), value.clone())) {
            let again = Invalid::new("another descriptor of this level has this key and value");
            section.refuse("key", again);
        }
        if section.has("metadata") {
            section.refuse("metadata", Invalid::new("not supported: no metadata is answered"));
        }
        let mut flag = |name| section.optional(name, values::boolean).unwrap_or(false);
        let (is_shadow, is_quota) = (flag("shadow-mode"), flag("quota-mode"));
        let (is_detailed, tells_value) = (flag("detailed-metric"), flag("value-to-metric"));
        let shares = flag("share-threshold");
        if shares && !value.as_ref().is_some_and(|value| value.contains('*')) {
            section.refuse("share-threshold", Invalid::new("valid only for a value with *"));
        }
        let mode = match (is_shadow, is_quota) {
            (true, true) => {
                section.refuse("quota-mode", Invalid::new("give only one of it and shadow_mode"));
                Mode::Shadow
            }
            (true, false) => Mode::Shadow,
            (false, true) => Mode::Quota,
            (false, false) => Mode::Enforced,
        };
        let above = [self.above, &[(key.clone(), value.clone())]].concat();
        let below = Trail { domain: self.domain, above: &above };
        let rule = limit::read(&mut section, &below.label(), mode, is_detailed);
        let mut children = Siblings::default();
        below.read_level(&mut section, text.descriptors.unwrap_or_default(), &mut children);
        section.close();
        let below = children.descriptors;
        Descriptor { key, value, shares, tells_value, rule, below }
    }

    fn label(&self) -> String {
        let path = self.above.iter().map(|(key, value)| (key.as_str(), value.as_deref()));
        crate::rules::descriptors::label(self.domain, path)
    }
}
