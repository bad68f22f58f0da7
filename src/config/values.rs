//! Conversion of figment's values to settings. Errors say what a value must be and never show it: it may
//! be a secret.

use std::borrow::Cow;
use std::error::Error;
use std::fmt::Display;
use std::fs::File;
use std::io::{self, Read as _};
use std::num::NonZeroUsize;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::thread;
use std::time::Duration;

use figment::value::Value;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::setting::Takes;
use super::yaml;
use crate::api::LimitHeaders;
use crate::api::envoy::MissingEntry;
use crate::rules::spec::{self, Field};
use crate::server::{AddressError, ListenAddress};

/// Maximum size of a PEM file, in bytes.
const MAX_PEM: u64 = 1024 * 1024;
/// The requirement on a PEM file that can't be read.
pub(super) const PEM_FILE: Invalid = Invalid::new("must be the path of a file that can be read");
/// Maximum number of addresses to listen on.
const MAX_ADDRESSES: usize = 16;

/// A setting and its text in the effective configuration, secrets masked; or the error.
pub(super) type Read<T> = Result<(T, String), Invalid>;

/// The requirement that a value does not meet, such as "must be true or false".
#[derive(Clone, Debug)]
pub(super) struct Invalid {
    pub(super) text: Cow<'static, str>,
    /// What meets it, where that is a simple type.
    pub(super) takes: Option<Takes>,
}

impl Invalid {
    pub(super) const fn new(valid: &'static str) -> Self {
        Self { text: Cow::Borrowed(valid), takes: None }
    }

    pub(super) fn from_text(valid: impl Into<Cow<'static, str>>) -> Self {
        Self { text: valid.into(), takes: None }
    }

    fn takes(self, takes: Takes) -> Self {
        Self { takes: Some(takes), ..self }
    }
}

impl<E: Error> From<E> for Invalid {
    fn from(error: E) -> Self {
        Self::from_text(error.to_string())
    }
}

/// Reads a field of a specification, which has its own errors.
pub(super) fn field<T>(value: &Value) -> Read<Field<T>>
where
    Field<T>: DeserializeOwned + Serialize,
{
    let field = value.deserialize().unwrap_or(Field::Unreadable);
    let (_, shown) = shown(Value::serialize(&field)?)?;
    Ok((field, shown))
}

/// Reads the value of a field of rules, which have their own errors.
pub(super) fn value_of(
    value: &Value,
    read: impl Fn(spec::Value) -> Option<spec::Value>,
) -> Read<Value> {
    let read = read(value.deserialize()?).ok_or(Invalid::new("must be a scalar"))?;
    shown(Value::serialize(read)?)
}

fn shown(value: Value) -> Read<Value> {
    let shown = match &value {
        Value::Array(_, items) => yaml::list(&items.iter().filter_map(scalar).collect::<Vec<_>>()),
        value => scalar(value).ok_or(Invalid::new("must be a scalar"))?,
    };
    Ok((value, shown))
}

/// Reads a string that the setting's own type parses and shows. A number is rejected: YAML reads `007`
/// as `7`.
pub(super) fn parsed<T>(value: &Value) -> Read<T>
where
    T: FromStr<Err: Error> + Display,
{
    let setting: T = value.as_str().unwrap_or_default().parse()?;
    let shown = setting.to_string();
    Ok((setting, shown))
}

/// Reads one of a few words.
pub(super) fn word<T: Copy>(value: &Value, words: &[(&'static str, T)]) -> Read<T> {
    let found = words.iter().find(|(word, _)| value.as_str() == Some(word));
    let (word, setting) = found.ok_or_else(|| {
        let words: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        let text = match words.split_last() {
            Some((last, [])) => (*last).to_owned(),
            Some((last, others)) => format!("{} or {last}", others.join(", ")),
            None => String::new(),
        };
        Invalid::from_text(format!("must be {text}")).takes(Takes::Words(words))
    })?;
    Ok((*setting, (*word).to_owned()))
}

/// Reads a string that is not empty.
pub(super) fn text(value: &Value) -> Read<String> {
    let text = value.as_str().filter(|text| !text.is_empty());
    let text = text.ok_or(Invalid::new("must be a string; quote numbers"))?;
    Ok((text.to_owned(), text.to_owned()))
}

/// Reads a string or a list of strings.
pub(super) fn texts(value: &Value) -> Result<Vec<String>, Invalid> {
    // An unquoted value may have been parsed as a number, and 007 as 7.
    let invalid =
        || Invalid::new("must be a string or a list of strings; quote numbers and booleans");
    let own = |value: &Value| value.as_str().map(str::to_owned);
    let texts = match value {
        Value::Array(_, items) => items.iter().map(own).collect(),
        value => own(value).map(|text| vec![text]),
    };
    texts.filter(|texts: &Vec<String>| !texts.is_empty()).ok_or_else(invalid)
}

/// Reads a list of strings, or one string separated by commas or spaces, for the environment.
pub(super) fn listed(value: &Value) -> Result<Vec<String>, Invalid> {
    match value.as_str() {
        Some(text) => {
            let texts = text.split([',', ' ']).filter(|text| !text.is_empty());
            Ok(texts.map(str::to_owned).collect())
        }
        None => texts(value),
    }
}

/// Like [`listed`], also an empty list.
pub(super) fn any_listed(value: &Value) -> Result<Vec<String>, Invalid> {
    match value {
        Value::Array(_, items) if items.is_empty() => Ok(Vec::new()),
        value => listed(value),
    }
}

/// Reads `true` or `false`.
pub(super) fn boolean(value: &Value) -> Read<bool> {
    let setting: bool = scalar(value)
        .and_then(|text| text.parse().ok())
        .ok_or(Invalid::new("must be true or false").takes(Takes::Boolean))?;
    Ok((setting, setting.to_string()))
}

/// Reads a whole number in a range.
pub(super) fn whole(
    value: &Value,
    range: RangeInclusive<u64>,
    otherwise: impl Into<Invalid>,
) -> Read<u64> {
    let number = scalar(value).and_then(|text| text.parse().ok());
    match number.filter(|number| range.contains(number)) {
        Some(number) => Ok((number, number.to_string())),
        None => Err(otherwise.into().takes(Takes::Whole(*range.start(), *range.end()))),
    }
}

/// Reads a whole number from 1 to `most`.
pub(super) fn count(most: u32) -> impl Fn(&Value) -> Read<u32> {
    move |value| {
        let valid = || Invalid::from_text(format!("must be a whole number from 1 to {most}"));
        let (number, shown) = whole(value, 1..=most.into(), valid())?;
        Ok((u32::try_from(number).map_err(|_| valid())?, shown))
    }
}

/// Reads a duration in a range: with a unit, or in whole seconds.
pub(super) fn duration(
    value: &Value,
    range: RangeInclusive<Duration>,
    valid: &'static str,
) -> Read<Duration> {
    let duration = scalar(value).and_then(|text| match text.parse() {
        Ok(seconds) => Some(Duration::from_secs(seconds)),
        Err(_not_a_number) => humantime::parse_duration(&text).ok(),
    });
    let duration = duration.filter(|duration| range.contains(duration));
    let duration = duration.ok_or(Invalid::new(valid).takes(Takes::Duration))?;
    Ok((duration, show(duration)))
}

/// Reads the path of a PEM file.
pub(super) fn pem_path(value: &Value) -> Read<PathBuf> {
    path_or(value, Invalid::new("must be the path of a PEM file"))
}

/// Reads the path of a file.
pub(super) fn path(value: &Value) -> Read<PathBuf> {
    path_or(value, Invalid::new("must be the path of a file"))
}

/// Reads a path. Rejects the contents of a file in its place, if they have several lines.
fn path_or(value: &Value, invalid: Invalid) -> Read<PathBuf> {
    let path = value.as_str().filter(|path| !path.is_empty() && !path.contains(['\n', '\0']));
    let path = path.ok_or(invalid)?;
    Ok((path.into(), path.to_owned()))
}

/// Reads a PEM file of at most 1 MiB.
pub(super) fn read_pem(file: &Path) -> io::Result<Vec<u8>> {
    let mut pem = Vec::new();
    File::open(file)?.take(MAX_PEM).read_to_end(&mut pem)?;
    Ok(pem)
}

/// Reads a duration from 0 to one hour.
pub(super) fn pause(value: &Value) -> Read<Duration> {
    let range = Duration::ZERO..=Duration::from_hours(1);
    duration(value, range, "must be a duration from 0s to 1h, such as 30s")
}

/// Reads the addresses to listen on.
pub(super) fn addresses(value: &Value) -> Read<Vec<ListenAddress>> {
    let texts = listed(value).map_err(|_| AddressError)?;
    if !(1..=MAX_ADDRESSES).contains(&texts.len()) {
        return Err(AddressError.into());
    }
    let addresses: Vec<ListenAddress> =
        texts.iter().map(|text| text.parse()).collect::<Result<_, AddressError>>()?;
    let shown: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    Ok((addresses, shown.join(" ")))
}

/// Reads the kind of rate limit headers.
pub(super) fn limit_headers(value: &Value) -> Read<LimitHeaders> {
    word(
        value,
        &[
            ("none", LimitHeaders::None),
            ("draft", LimitHeaders::Draft),
            ("legacy", LimitHeaders::Legacy),
            ("both", LimitHeaders::Both),
        ],
    )
}

/// Reads what becomes of requests without the entry of their project.
pub(super) fn missing_entry(value: &Value) -> Read<MissingEntry> {
    word(value, &[("deny", MissingEntry::Deny), ("allow", MissingEntry::Allow)])
}

/// Reads the number of worker threads. `auto` is one for each core.
pub(super) fn workers(value: &Value) -> Read<NonZeroUsize> {
    const MAX_WORKERS: u64 = 1024;
    if value.as_str() == Some("auto") {
        let cores = thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
        return Ok((cores, "auto".to_owned()));
    }
    let invalid = Invalid::new("must be auto or a whole number from 1 to 1024");
    let (number, shown) =
        whole(value, 1..=MAX_WORKERS, invalid.clone()).map_err(|_| invalid.clone())?;
    let number = usize::try_from(number).ok().and_then(NonZeroUsize::new).ok_or(invalid)?;
    Ok((number, shown))
}

/// Returns the text of a scalar: YAML may have parsed an unquoted string as a number or a boolean.
pub(super) fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(_, text) => Some(text.clone()),
        Value::Char(_, character) => Some(character.to_string()),
        Value::Bool(_, boolean) => Some(boolean.to_string()),
        Value::Num(_, number) => match (number.to_u128(), number.to_i128()) {
            (Some(number), _) => Some(number.to_string()),
            (None, Some(number)) => Some(number.to_string()),
            (None, None) => number.to_f64().map(|number| number.to_string()),
        },
        Value::Empty(..) | Value::Dict(..) | Value::Array(..) => None,
    }
}

fn show(duration: Duration) -> String {
    if duration.is_zero() { "0s".to_owned() } else { format!("{duration:?}") }
}
