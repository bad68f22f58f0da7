//! Restores strings as written in the file: for `value: 007` YAML returns the number 7, but the value
//! of a descriptor is the string `007`.

use figment::value::{Dict, Value};
use serde::Deserialize;

#[derive(Deserialize)]
struct FileText {
    domain: Option<String>,
    descriptors: Option<Vec<DescriptorText>>,
}

#[derive(Deserialize)]
struct DescriptorText {
    key: Option<String>,
    value: Option<String>,
    #[serde(alias = "rate-limit")]
    rate_limit: Option<LimitText>,
    descriptors: Option<Vec<DescriptorText>>,
}

#[derive(Deserialize)]
struct LimitText {
    name: Option<String>,
    replaces: Option<Vec<NameText>>,
}

#[derive(Deserialize)]
struct NameText {
    name: Option<String>,
}

/// Replaces scalars in `dict`, which was parsed from `file`, by their original text.
///
/// # Errors
///
/// If the file has another structure than expected. `dict` is unchanged then.
pub(super) fn restore(file: &str, dict: &mut Dict) -> Result<(), serde_saphyr::Error> {
    if let Some(texts) = serde_saphyr::from_str::<Option<FileText>>(file)? {
        set(dict, "domain", texts.domain);
        restore_descriptors(dict, texts.descriptors);
    }
    Ok(())
}

fn restore_descriptors(dict: &mut Dict, texts: Option<Vec<DescriptorText>>) {
    for (dict, text) in zipped(dict, "descriptors", texts) {
        set(dict, "key", text.key);
        set(dict, "value", text.value);
        let limit = ["rate_limit", "rate-limit"].into_iter().find(|key| dict.contains_key(*key));
        let limit = limit.and_then(|key| dict.get_mut(key));
        if let (Some(Value::Dict(_, limit)), Some(text)) = (limit, text.rate_limit) {
            set(limit, "name", text.name);
            for (replaced, text) in zipped(limit, "replaces", text.replaces) {
                set(replaced, "name", text.name);
            }
        }
        restore_descriptors(dict, text.descriptors);
    }
}

/// Returns the sections of a list, each with its original strings.
fn zipped<'a, T: 'a>(
    dict: &'a mut Dict,
    key: &str,
    texts: Option<Vec<T>>,
) -> impl Iterator<Item = (&'a mut Dict, T)> {
    let items = match dict.get_mut(key) {
        Some(Value::Array(_, items)) => items.as_mut_slice(),
        _ => &mut [],
    };
    let both = items.iter_mut().zip(texts.into_iter().flatten());
    both.filter_map(|(item, text)| match item {
        Value::Dict(_, dict) => Some((dict, text)),
        _ => None,
    })
}

fn set(dict: &mut Dict, key: &str, text: Option<String>) {
    if let (Some(value), Some(text)) = (dict.get_mut(key), text) {
        *value = text.into();
    }
}
