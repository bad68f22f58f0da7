//! Conversion of fields from and to values of YAML and JSON.

use std::time::Duration;

use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{Field, StoreFailurePolicy};
use crate::algorithm::{Algorithm, Limit, OnChange, WindowFrom};
use crate::calendar::CalendarUnit;
use crate::clock::Micros;
use crate::rules::{EnforcedShare, Percentage, RuleMode, Share, Unmatched};

/// Digits after the decimal point of a share.
const SHARE_DIGITS: usize = 6;

/// A value of any type.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(untagged)]
#[expect(missing_docs, reason = "the types of YAML")]
pub enum Value {
    Boolean(bool),
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Text(String),
    Texts(Vec<String>),
    /// A value that no field has, such as a map.
    #[serde(skip_serializing)]
    Other(IgnoredAny),
}

/// The kinds of values.
#[derive(Clone, Copy, Debug)]
pub enum ValueKind {
    /// `true` or `false`.
    Boolean,
    /// A whole number.
    Whole,
    /// A text.
    Text,
    /// One text or several.
    Texts,
    /// One of these words.
    Words(fn() -> Vec<&'static str>),
    /// A time with a unit, or in whole seconds.
    Duration,
    /// A number above 0 and at most 1.
    Share,
    /// A percentage.
    Percentage,
    /// Several percentages.
    Percentages,
}

/// A type of a field.
pub trait FieldType: Sized {
    /// The kind of its values.
    const KIND: ValueKind;

    /// Converts a value; `None` if it has the wrong type.
    fn read(value: Value) -> Option<Self>;

    /// Returns the value that [`FieldType::read`] converts to `self`.
    fn write(&self) -> Value;
}

impl<'de, T: FieldType> Deserialize<'de> for Field<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Value::deserialize(deserializer)
            .map(|value| T::read(value).map_or(Self::Unreadable, Self::Set))
    }
}

impl<T: FieldType> Serialize for Field<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Set(value) => value.write().serialize(serializer),
            Self::Unset | Self::Unreadable => serializer.serialize_unit(),
        }
    }
}

impl Value {
    /// Returns a scalar as text. YAML reads some unquoted texts as numbers or booleans.
    fn into_scalar(self) -> Option<String> {
        match self {
            Self::Boolean(boolean) => Some(boolean.to_string()),
            Self::Unsigned(number) => Some(number.to_string()),
            Self::Signed(number) => Some(number.to_string()),
            Self::Float(number) => Some(number.to_string()),
            Self::Text(text) => Some(text),
            Self::Texts(_) | Self::Other(_) => None,
        }
    }

    /// Returns a text. Numbers are refused, because `007` would become `7`.
    fn into_text(self) -> Option<String> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }
}

impl FieldType for bool {
    const KIND: ValueKind = ValueKind::Boolean;

    fn read(value: Value) -> Option<Self> {
        value.into_scalar()?.parse().ok()
    }

    fn write(&self) -> Value {
        Value::Boolean(*self)
    }
}

impl FieldType for u64 {
    const KIND: ValueKind = ValueKind::Whole;

    fn read(value: Value) -> Option<Self> {
        value.into_scalar()?.parse().ok()
    }

    fn write(&self) -> Value {
        Value::Unsigned(*self)
    }
}

impl FieldType for String {
    const KIND: ValueKind = ValueKind::Text;

    fn read(value: Value) -> Option<Self> {
        value.into_text()
    }

    fn write(&self) -> Value {
        Value::Text(self.clone())
    }
}

/// One text or several.
impl FieldType for Vec<String> {
    const KIND: ValueKind = ValueKind::Texts;

    fn read(value: Value) -> Option<Self> {
        match value {
            Value::Text(text) => Some(vec![text]),
            Value::Texts(texts) => Some(texts),
            _ => None,
        }
    }

    fn write(&self) -> Value {
        if let [text] = self.as_slice() { text.write() } else { Value::Texts(self.clone()) }
    }
}

impl FieldType for Algorithm {
    const KIND: ValueKind = ValueKind::Words(|| Self::NAMES.to_vec());

    fn read(value: Value) -> Option<Self> {
        Self::from_name(&value.into_text()?)
    }

    fn write(&self) -> Value {
        Value::Text(self.name().to_owned())
    }
}

/// A type with a few named values.
trait Named: Copy + 'static {
    const VALUES: &'static [Self];

    fn word(self) -> &'static str;
}

impl<T: Named> FieldType for T {
    const KIND: ValueKind = ValueKind::Words(|| T::VALUES.iter().map(|own| own.word()).collect());

    fn read(value: Value) -> Option<Self> {
        let text = value.into_text()?.replace('_', "-");
        T::VALUES.iter().copied().find(|value| value.word() == text)
    }

    fn write(&self) -> Value {
        Value::Text(self.word().to_owned())
    }
}

impl Named for CalendarUnit {
    const VALUES: &'static [Self] = &Self::ALL;

    fn word(self) -> &'static str {
        self.name()
    }
}

/// A window: a duration such as `10s`, or whole seconds.
impl FieldType for Micros {
    const KIND: ValueKind = ValueKind::Duration;

    fn read(value: Value) -> Option<Self> {
        let text = value.into_scalar()?;
        let window = match text.parse() {
            Ok(seconds) => Duration::from_secs(seconds),
            Err(_not_a_number) => humantime::parse_duration(&text).ok()?,
        };
        let is_whole = window.as_nanos().is_multiple_of(1_000);
        let micros = u64::try_from(window.as_micros()).ok().filter(|_| is_whole)?;
        let span = Self::from_micros(micros);
        Limit::new(1, span).is_ok().then_some(span)
    }

    fn write(&self) -> Value {
        Value::Text(self.to_string())
    }
}

impl FieldType for Share {
    const KIND: ValueKind = ValueKind::Share;

    fn read(value: Value) -> Option<Self> {
        decimal(&value.into_scalar()?, SHARE_DIGITS).and_then(Self::new)
    }

    fn write(&self) -> Value {
        Value::Float(f64::from(self.millionths()) / f64::from(Self::WHOLE))
    }
}

/// A percentage, such as `25%`.
impl FieldType for EnforcedShare {
    const KIND: ValueKind = ValueKind::Percentage;

    fn read(value: Value) -> Option<Self> {
        percentage(value).and_then(Self::new)
    }

    fn write(&self) -> Value {
        Value::Text(self.to_string())
    }
}

impl FieldType for Percentage {
    const KIND: ValueKind = ValueKind::Percentage;

    fn read(value: Value) -> Option<Self> {
        percentage(value).and_then(Share::new).map(Self)
    }

    fn write(&self) -> Value {
        Value::Text(self.to_string())
    }
}

/// Percentages, such as `[80%, 100%]`, or one.
impl FieldType for Vec<Percentage> {
    const KIND: ValueKind = ValueKind::Percentages;

    fn read(value: Value) -> Option<Self> {
        let texts = Vec::<String>::read(value)?;
        texts.into_iter().map(|text| Percentage::read(Value::Text(text))).collect()
    }

    fn write(&self) -> Value {
        let texts = self.iter().filter_map(|share| share.write().into_text());
        texts.collect::<Vec<String>>().write()
    }
}

/// Returns the millionths of a percentage.
fn percentage(value: Value) -> Option<u32> {
    decimal(value.into_text()?.strip_suffix('%')?.trim_end(), SHARE_DIGITS - 2)
}

/// Reads a decimal number with up to `digits` digits after the point, times 10 to that power.
fn decimal(text: &str, digits: usize) -> Option<u32> {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let is_number = |text: &str, max_len: usize| {
        text.len() <= max_len && text.bytes().all(|byte| byte.is_ascii_digit())
    };
    if whole.is_empty() || !is_number(whole, SHARE_DIGITS) || !is_number(part, digits) {
        return None;
    }
    format!("{whole}{part:0<digits$}").parse().ok()
}

impl Named for StoreFailurePolicy {
    const VALUES: &'static [Self] = &Self::ALL;

    fn word(self) -> &'static str {
        self.name()
    }
}

impl Named for WindowFrom {
    const VALUES: &'static [Self] = &Self::ALL;

    fn word(self) -> &'static str {
        self.name()
    }
}

impl Named for OnChange {
    const VALUES: &'static [Self] = &Self::ALL;

    fn word(self) -> &'static str {
        self.name()
    }
}

impl FieldType for RuleMode {
    const KIND: ValueKind = ValueKind::Words(|| Self::ALL.iter().map(|own| own.name()).collect());

    fn read(value: Value) -> Option<Self> {
        match value {
            // YAML reads an unquoted `off` as a boolean.
            Value::Boolean(false) => Some(Self::Off),
            value => {
                let text = value.into_text()?;
                Self::ALL.into_iter().find(|mode| mode.name() == text)
            }
        }
    }

    fn write(&self) -> Value {
        Value::Text(self.name().to_owned())
    }
}

impl Named for Unmatched {
    const VALUES: &'static [Self] = &Self::ALL;

    fn word(self) -> &'static str {
        self.name()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::rules::spec::{CalendarSpec, MatcherSpec, OverrideSpec, RuleSpec};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn specification_is_unchanged_by_serialization(spec in rule()) {
            let yaml = serde_saphyr::to_string(&spec).expect("YAML");
            let read = serde_saphyr::from_str::<RuleSpec>(&yaml);
            prop_assert_eq!(read.as_ref().ok(), Some(&spec), "{}\n{:?}", yaml, read);
            let json = serde_json::to_string(&spec).expect("JSON");
            prop_assert_eq!(serde_json::from_str::<RuleSpec>(&json).ok(), Some(spec), "{}", json);
        }
    }

    fn field<T: Clone + std::fmt::Debug + 'static>(
        value: impl Strategy<Value = T> + 'static,
    ) -> BoxedStrategy<Field<T>> {
        prop_oneof![
            2 => Just(Field::Unset),
            1 => Just(Field::Unreadable),
            5 => value.prop_map(Field::Set),
        ]
        .boxed()
    }

    /// Texts, including those that are other values in YAML without quotes.
    fn text() -> impl Strategy<Value = String> {
        prop_oneof![
            "[a-z/*.]{1,8}",
            r#"[-#:'"\[\]{},~!&%@|>`? a0-9\n]{0,6}"#,
            prop::sample::select(vec!["007", "true", "No", "null", "~", "1e3", "60s", ""])
                .prop_map(str::to_owned),
        ]
    }

    fn texts() -> BoxedStrategy<Field<Vec<String>>> {
        field(prop::collection::vec(text(), 0..4))
    }

    fn matcher() -> impl Strategy<Value = MatcherSpec> {
        // A key of a map always has a value.
        let given = texts().prop_filter("unset", |field| !field.is_unset());
        let attributes = prop::collection::btree_map(text(), given, 0..3);
        let parts = (texts(), texts(), attributes);
        parts.prop_map(|(resource, user_id, attributes)| MatcherSpec {
            resource,
            user_id,
            attributes,
        })
    }

    fn exception() -> impl Strategy<Value = OverrideSpec> {
        let shares = (1..=Share::WHOLE).prop_map(|part| Share::new(part).expect("a share"));
        let shares = field(shares.prop_map(Percentage));
        let parts =
            (matcher(), field(any::<bool>()), field(any::<u64>()), field(any::<u64>()), shares);
        parts.prop_map(|(matcher, unlimited, limit, burst, headroom)| OverrideSpec {
            matcher,
            unlimited,
            limit,
            burst,
            headroom,
        })
    }

    fn rule() -> impl Strategy<Value = RuleSpec> {
        let windows = 1..=Limit::MAX_WINDOW.as_micros() / 1_000;
        let windows = windows.prop_map(|millis| Micros::from_micros(millis * 1_000));
        let shares = (1..=Share::WHOLE).prop_map(|of| Share::new(of).expect("a share"));
        let enforced = (0..=EnforcedShare::ALL.millionths())
            .prop_map(|of| EnforcedShare::new(of).expect("a share"));
        let rate = (
            field(prop::sample::select(Algorithm::RATES.to_vec())),
            field(any::<u64>()),
            field(windows),
            field(any::<u64>()),
            field(prop::sample::select(WindowFrom::ALL.to_vec())),
        );
        let failure = (
            field(shares.clone()),
            field(prop::sample::select(StoreFailurePolicy::ALL.to_vec())),
            field(any::<bool>()),
            field(any::<bool>()),
            field(shares.clone()),
        );
        let about = (field(any::<u64>()), field(text()), texts(), matcher(), texts());
        let rest = (
            field(any::<bool>()),
            field(prop::sample::select(RuleMode::ALL.to_vec())),
            field(enforced),
            field(prop::sample::select(OnChange::ALL.to_vec())),
            field(any::<bool>()),
            (
                field(any::<u64>()),
                field(any::<bool>()),
                field(any::<u64>()),
                field(any::<bool>()),
                field(shares.clone().prop_map(Percentage)),
                field(text()),
                field(prop::collection::vec(shares.clone().prop_map(Percentage), 0..4)),
            ),
            prop::collection::vec(exception(), 0..3),
        );
        (about, rate, failure, rest).prop_map(|(about, rate, failure, rest)| {
            let (version, name, endpoint, matcher, key_by) = about;
            let (algorithm, limit, window, burst, window_from) = rate;
            let (local_share, on_store_failure, fail_open, breaker_opens_rule, near_limit) =
                failure;
            let (shadow, mode, enforce, on_change, overridable, later, overrides) = rest;
            let (cost, post_paid, max_debt, reservable, hold_share, limit_from, notify_at) = later;
            RuleSpec {
                version,
                name,
                endpoint,
                matcher,
                key_by,
                algorithm,
                limit,
                window,
                calendar: CalendarSpec::default(),
                window_from,
                burst,
                limit_from,
                cost,
                post_paid,
                max_debt,
                reservable,
                hold: Field::Unset,
                max_holds: Field::Unset,
                hold_share,
                shadow,
                mode,
                enforce,
                on_change,
                local_share,
                on_store_failure,
                fail_open,
                breaker_opens_rule,
                near_limit,
                notify_at,
                overridable,
                overrides,
                file: Arc::default(),
                revision: None,
            }
        })
    }
}
