//! Values of arguments as they are typed.

use std::time::{Duration, SystemTime};

use anyhow::anyhow;
use prost::Message;
use prost_types::Timestamp;
use rlaas_core::algorithm::Algorithm;
use rlaas_core::clock::Micros;
use rlaas_core::rules::spec::Field;
use rlaas_core::rules::{EnforcedShare, Percentage, Share};
use rlaas_proto::ratelimit::admin::v1::{DescriptorEntry, KeyPart};
use rlaas_proto::ratelimit::v1::CalendarWindow;
use rlaas_proto::ratelimit::v1::calendar_window::Unit;
use rlaas_proto::{API_KEY_ID_LEN, TypedApiKey};
use serde::Deserialize;
use serde::de::value::{Error, StrDeserializer};
use serde::de::{DeserializeOwned, IntoDeserializer};

/// A value that was given, before the field says which type it has.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Input {
    Flag(bool),
    /// A text, or the name of a value of an enum.
    Text(String),
    Number(u64),
    /// An entry of a map, or of a list of names with their texts.
    Pair(String, String),
    /// The bytes of a message.
    Message(Vec<u8>),
}

/// Parses a value, or says what is required of it.
pub(crate) type Parse = fn(&str) -> Result<Input, String>;

const UNITS: &str = "must be a whole number from 1 to 999999999999999";

/// Returns the parser of this name.
///
/// # Panics
///
/// If there is none: a test reads all names.
pub(crate) fn by_name(name: &str) -> Parse {
    match name {
        "project" => |text| Ok(Input::Text(crate::text::project_id(text))),
        "pair" => pair,
        "part" => part,
        "id_of_secret" => id_of_secret,
        "up_to_a_year" => up_to_a_year,
        "up_to_a_month" => up_to_a_month,
        "grace" => grace,
        "end" => end,
        "since" => since,
        "units" => units,
        "window" => window,
        "calendar" => calendar,
        "algorithm" => algorithm,
        "enforced" => enforced,
        "percentage" => percentage,
        "share" => share,
        "boolean" => |text| read(text, "must be true or false").map(Input::Flag),
        "key_part" => key_part,
        "condition" => condition,
        other => panic!("no parser {other}"),
    }
}

#[expect(clippy::unnecessary_wraps, reason = "one of several parsers")]
pub(crate) fn text(text: &str) -> Result<Input, String> {
    Ok(Input::Text(text.to_owned()))
}

fn pair(text: &str) -> Result<Input, String> {
    crate::key_value(text).map(|(key, value)| Input::Pair(key, value)).map_err(str::to_owned)
}

/// A part of a key, or its name if the request does not have it.
#[expect(clippy::unnecessary_wraps, reason = "one of several parsers")]
fn part(text: &str) -> Result<Input, String> {
    let (name, value) = match text.split_once('=') {
        Some((name, value)) => (name, Some(value.to_owned())),
        None => (text, None),
    };
    Ok(Input::Message(KeyPart { name: name.to_owned(), value }.encode_to_vec()))
}

/// The id of an API key, cut from the beginning of its secret: what follows is for nobody.
fn id_of_secret(text: &str) -> Result<Input, String> {
    let is_id =
        text.len() == API_KEY_ID_LEN && text.bytes().all(|byte| byte.is_ascii_alphanumeric());
    let id = if is_id { Some(text) } else { TypedApiKey::at_start(text).map(|key| key.id()) };
    id.map(|id| Input::Text(id.to_owned())).ok_or_else(|| {
        "must be an id of 8 characters, or begin with rlaas_live_ and them".to_owned()
    })
}

/// Parses an entry of a descriptor.
pub(crate) fn descriptor_entry(text: &str) -> anyhow::Result<DescriptorEntry> {
    let (key, value) = text
        .split_once('=')
        .ok_or_else(|| anyhow!("--envoy must have KEY=VALUE after the domain, not {text:?}"))?;
    Ok(DescriptorEntry { key: key.to_owned(), value: value.to_owned() })
}

fn duration(text: &str, min: Duration, max: Duration, valid: &str) -> Result<Input, String> {
    let parsed = humantime::parse_duration(text).ok().filter(|time| (min..=max).contains(time));
    parsed.map(span).ok_or_else(|| valid.to_owned())
}

fn span(time: Duration) -> Input {
    let span = prost_types::Duration::try_from(time).unwrap_or_default();
    Input::Message(span.encode_to_vec())
}

const fn days(days: u64) -> Duration {
    Duration::from_hours(days * 24)
}

/// The time of an override.
fn up_to_a_year(text: &str) -> Result<Input, String> {
    let valid = "must be a duration from 1s to 366d, such as 2h";
    duration(text, Duration::from_secs(1), days(366), valid)
}

/// The time of a mode.
fn up_to_a_month(text: &str) -> Result<Input, String> {
    let valid = "must be a duration from 1s to 30d, such as 1h";
    duration(text, Duration::from_secs(1), days(30), valid)
}

/// The time that a replaced key stays valid.
fn grace(text: &str) -> Result<Input, String> {
    duration(text, Duration::ZERO, days(30), "must be a duration from 0s to 30d, such as 1h")
}

/// A time from now on, or a time.
#[expect(clippy::disallowed_methods, reason = "keys end by wall time")]
fn end(text: &str) -> Result<Input, String> {
    let from_now =
        humantime::parse_duration(text).ok().and_then(|time| SystemTime::now().checked_add(time));
    let end = from_now.or_else(|| humantime::parse_rfc3339(text).ok());
    let end =
        end.ok_or("must be a duration, such as 90d, or a time, such as 2027-01-31T00:00:00Z")?;
    Ok(Input::Message(Timestamp::from(end).encode_to_vec()))
}

/// A time before now.
#[expect(clippy::disallowed_methods, reason = "entries are selected by wall time")]
fn since(text: &str) -> Result<Input, String> {
    let time = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    let since = SystemTime::now().checked_sub(time).map(Timestamp::from).unwrap_or_default();
    Ok(Input::Message(since.encode_to_vec()))
}

/// Reads a text as the field of a rules file.
fn read<T>(text: &str, valid: &str) -> Result<T, String>
where
    Field<T>: DeserializeOwned,
{
    let text: StrDeserializer<'_, Error> = text.into_deserializer();
    match Field::deserialize(text) {
        Ok(Field::Set(value)) => Ok(value),
        _ => Err(valid.to_owned()),
    }
}

fn units(text: &str) -> Result<Input, String> {
    let units = read(text, UNITS)?;
    if units == 0 { Err(UNITS.to_owned()) } else { Ok(Input::Number(units)) }
}

fn window(text: &str) -> Result<Input, String> {
    let valid = "must be a duration from 1ms to 366d, in whole milliseconds, such as 10s";
    read(text, valid).map(|window: Micros| span(window.into()))
}

/// Windows of a calendar: the unit, the zone and the day on which they begin.
fn calendar(text: &str) -> Result<Input, String> {
    const VALID: &str = "must be a unit, and a zone and a day if they are wanted, such as \
                         month,Europe/Berlin,15";
    let mut parts = text.split(',');
    let name = parts.next().unwrap_or_default().to_uppercase();
    let unit = Unit::from_str_name(&name).filter(|unit| *unit != Unit::Unspecified).ok_or(VALID)?;
    let zone = parts.next().unwrap_or_default().to_owned();
    let anchor = parts.next().map_or(Ok(0), |day| read::<u64>(day, VALID))?;
    let anchor = u32::try_from(anchor).map_err(|_| VALID)?;
    if parts.next().is_some() {
        return Err(VALID.to_owned());
    }
    let window = CalendarWindow { unit: unit.into(), zone, anchor, ..CalendarWindow::default() };
    Ok(Input::Message(window.encode_to_vec()))
}

fn algorithm(text: &str) -> Result<Input, String> {
    let names =
        || Algorithm::ALL.iter().map(|algorithm| algorithm.name()).collect::<Vec<_>>().join(", ");
    let read: Result<Algorithm, _> = read(text, "");
    read.map(|algorithm| Input::Text(algorithm.name().to_uppercase().replace('-', "_")))
        .map_err(|_| format!("must be one of {}", names()))
}

fn enforced(text: &str) -> Result<Input, String> {
    let share: EnforcedShare = read(text, "must be a percentage from 0% to 100%, such as 25%")?;
    Ok(Input::Number(share.millionths().into()))
}

fn percentage(text: &str) -> Result<Input, String> {
    let Percentage(share) = read(text, "must be a percentage from 1% to 100%, such as 20%")?;
    Ok(Input::Number(share.millionths().into()))
}

fn share(text: &str) -> Result<Input, String> {
    let share: Share = read(text, "must be a number above 0 and at most 1, such as 0.5")?;
    Ok(Input::Number(share.millionths().into()))
}

#[expect(clippy::unnecessary_wraps, reason = "one of several parsers")]
fn key_part(text: &str) -> Result<Input, String> {
    Ok(Input::Text(match text {
        "user_id" | "user-id" => "user_id".to_owned(),
        "resource" => text.to_owned(),
        name => format!("attributes.{name}"),
    }))
}

fn condition(text: &str) -> Result<Input, String> {
    const VALID: &str = "must be user_id=PATTERN, resource=PATTERN or attributes.NAME=PATTERN";
    let (part, pattern) = text.split_once('=').ok_or(VALID)?;
    let part = match part {
        "user_id" | "user-id" => "user_id",
        "resource" => part,
        part if part.strip_prefix("attributes.").is_some_and(|name| !name.is_empty()) => part,
        _ => return Err(VALID.to_owned()),
    };
    Ok(Input::Pair(part.to_owned(), pattern.to_owned()))
}
