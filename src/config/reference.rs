//! The reference: every setting with its description, valid values and default.
//!
//! The code that reads configurations lists its settings in a survey, so that the reference can't
//! differ from it.

use super::problem::{Problem, ProblemKind};
use super::setting::{Declared, Effective, Kind, Takes};
use super::sources::{field_of, variable_of};
use super::tree::Tree;
use super::{Config, Sources, envoy};

/// One setting, section or list of sections.
#[derive(Clone, Debug)]
pub struct SettingReference {
    /// Path; `rules[].name` is a setting of each item.
    pub path: String,
    /// Value, section or list.
    pub kind: Kind,
    /// Description, in whole sentences.
    pub about: &'static str,
    /// Valid values, in the words of the problem that a wrong one causes.
    pub must_be: String,
    /// Default as YAML, if there is one.
    pub default: Option<String>,
    /// Value for the example configuration, as YAML.
    pub example: Option<&'static str>,
    /// What its values can be, as far as that is known.
    pub takes: Option<Takes>,
    /// The last part of the path stands for names that are data.
    pub is_name: bool,
}

impl SettingReference {
    /// Returns the environment variable that sets it. Sections and items of lists have none.
    pub fn variable(&self) -> Option<String> {
        let has_variable = self.kind != Kind::Section && !self.path.contains("[]");
        has_variable.then(|| variable_of(&self.path))
    }

    /// Returns the other spellings of the key.
    pub fn other_spellings(&self) -> Vec<String> {
        let (within, key) = self.path.rsplit_once('.').unwrap_or(("", &self.path));
        let mut names = vec![key];
        names.extend(
            field_of(&within.replace("[]", "[0]"), key).into_iter().flat_map(|field| field.aliases),
        );
        let spelled = names.iter().flat_map(|name| [(*name).to_owned(), name.replace('-', "_")]);
        let mut spelled: Vec<String> = spelled.filter(|name| name != key).collect();
        spelled.dedup();
        spelled
    }
}

/// Returns every setting of the configuration, in the order of the documentation.
pub fn reference() -> Vec<SettingReference> {
    let tree = Tree::survey();
    let mut root = tree.root();
    let _config = Config::read(&mut root, &Sources::default());
    root.close();
    listed(tree)
}

/// Returns every setting of files of envoyproxy/ratelimit.
pub fn envoy_file_reference() -> Vec<SettingReference> {
    let tree = Tree::survey();
    let mut root = tree.root();
    envoy::file::survey(&mut root);
    root.close();
    let mut settings = listed(tree);
    for setting in &mut settings {
        setting.path = setting.path.replace('-', "_");
    }
    settings
}

fn listed(tree: Tree) -> Vec<SettingReference> {
    let (declared, problems, defaults) = tree.surveyed();
    let listed = declared.into_iter().map(|declared| {
        let Declared { path, kind, setting, takes, is_name } = declared;
        SettingReference {
            must_be: must_be(&problems, &path).unwrap_or_default(),
            default: defaults.iter().find(|default| default.key == path).map(Effective::to_yaml),
            path: path.replace("[0]", "[]"),
            kind,
            about: setting.about,
            example: setting.example,
            takes,
            is_name,
        }
    });
    listed.collect()
}

/// Returns the valid values of a setting, from the first problem that its path has.
fn must_be(problems: &[Problem], path: &str) -> Option<String> {
    let values = problems.iter().find_map(|problem| match problem {
        Problem { key, kind: ProblemKind::Invalid { must, .. }, .. } if key == path => {
            must.strip_prefix("must be ")
        }
        _ => None,
    });
    values.map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_is_described() {
        for setting in reference().into_iter().chain(envoy_file_reference()) {
            let SettingReference { path, kind, about, must_be, .. } = &setting;
            assert!(about.ends_with('.') && about.len() > 10, "{path}: {about}");
            assert!(*kind != Kind::Value || !must_be.is_empty(), "{path}: no values");
        }
    }

    #[test]
    fn every_setting_without_a_default_has_an_example() {
        let is_in_item = |path: &str| path.contains("[]");
        let settings = reference().into_iter();
        for SettingReference { path, kind, default, example, .. } in settings {
            if kind == Kind::Value && !is_in_item(&path) {
                assert!(default.is_some() || example.is_some(), "{path}");
            }
        }
    }
}
