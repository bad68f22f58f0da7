//! Forms: each makes one message. A field has the path of its value in the message, and what the service
//! says of that path stands beside the field.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use maud::{Markup, html};
use prost_types::Timestamp;
use ring::error::Unspecified;
use ring::rand::{SecureRandom, SystemRandom};
use rlaas_proto::json;
use serde_json::{Value, json};

use super::calls::id_of;
use super::fields::FormFields;
use super::layout::{Frame, failure};
use super::page_error::PageError;
use super::rule_words::EVERY_KEY;

/// The windows of rules.
const WINDOWS: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_hours(366 * 24);

/// A form, whose fields are shown in their order.
#[derive(Clone, Copy, Debug)]
pub(super) struct Form {
    /// The route that it is sent to.
    action: &'static str,
    /// The message that it makes, of the package of administration.
    message: &'static str,
    /// What it does; may be empty.
    hint: &'static str,
    fields: &'static [Field],
    button: &'static str,
    /// Class of the button; may be empty.
    tone: &'static str,
    /// Name and value of the button, which tell forms of one route apart.
    choice: Option<(&'static str, &'static str)>,
    /// Further buttons: their values, under the name of the first, and their labels.
    more: &'static [(&'static str, &'static str)],
}

/// A field of a form.
#[derive(Clone, Copy, Debug)]
pub(super) struct Field {
    pub(super) name: &'static str,
    label: &'static str,
    /// Path of its value in the message; empty if it has none. The page sets one in an item of a list.
    path: &'static str,
    kind: FieldKind,
    /// A remark below the input; may be empty.
    hint: &'static str,
    /// An example; may be empty.
    example: &'static str,
    /// Most characters; 0 if there is no bound.
    max: u32,
}

/// The input of a field, and the form of its value.
#[derive(Clone, Copy, Debug)]
pub(super) enum FieldKind {
    /// A value of the page, as it is.
    Hidden,
    /// A number of the page.
    HiddenNumber,
    /// A project of the page.
    Project,
    /// The id of the change: a form that is sent twice makes one change.
    RequestId,
    Text,
    /// Pairs such as `plan=pro`, with commas between them.
    Attributes,
    /// A time in UTC; none if it is empty.
    Time,
    /// A time from now, in words such as `12h`, of at most so many days.
    Ttl(u64),
    /// A span in words such as `1 h 30 min`, from 1 ms to 366 days.
    Window,
    /// A percentage, as parts per million; none if it is empty.
    Share,
    /// A number from 1 to this one.
    Units(u64),
    /// The same, or empty.
    OptionalUnits(u64),
    /// A number of units, or `unlimited`.
    Limit(u64),
    /// One of a list.
    Choice(&'static [FieldChoice]),
    /// A box with the value `on`.
    Check,
}

/// A value of a list: in the form, in words, and in the JSON of the message.
pub(super) type FieldChoice = (&'static str, &'static str, &'static str);

/// A form that was refused: what was typed, and why.
#[derive(Clone, Debug)]
pub(super) struct RefusedForm {
    pub(super) form: &'static Form,
    pub(super) fields: FormFields,
    pub(super) error: PageError,
}

/// Where a form is shown, and what it begins with.
#[derive(Clone, Copy, Debug)]
pub(super) struct FormPlace<'a> {
    pub(super) frame: &'a Frame,
    /// Beginning of the ids of its inputs, unique in the page.
    pub(super) prefix: &'a str,
    /// Values by the names of fields; others are empty.
    pub(super) values: &'a [(&'a str, &'a str)],
    /// What was refused of this form.
    pub(super) refused: Option<&'a RefusedForm>,
}

impl Field {
    /// The project of the page.
    pub(super) const PROJECT: Self = Self::new("project", "project_id", FieldKind::Project);
    /// The id of the change.
    pub(super) const REQUEST_ID: Self = Self::new("request_id", "request_id", FieldKind::RequestId);
    /// The reason of a change.
    pub(super) const REASON: Self = Self::new("reason", "reason", FieldKind::Text)
        .labelled("Why")
        .hint("For the audit; may be empty.")
        .max(1024);
    /// The reason of a change of keys, which must be given.
    pub(super) const NEEDED_REASON: Self = Self::new("reason", "reason", FieldKind::Text)
        .labelled("Why, for the audit (needed)")
        .example("ticket 4711");

    /// Creates a field without a label, by its name and the path of its value.
    pub(super) const fn new(name: &'static str, path: &'static str, kind: FieldKind) -> Self {
        Self { name, label: "", path, kind, hint: "", example: "", max: 0 }
    }

    pub(super) const fn labelled(self, label: &'static str) -> Self {
        Self { label, ..self }
    }

    pub(super) const fn at(self, path: &'static str) -> Self {
        Self { path, ..self }
    }

    pub(super) const fn hint(self, hint: &'static str) -> Self {
        Self { hint, ..self }
    }

    pub(super) const fn example(self, example: &'static str) -> Self {
        Self { example, ..self }
    }

    pub(super) const fn max(self, max: u32) -> Self {
        Self { max, ..self }
    }

    /// Returns the name of the field in a sentence.
    fn term(&self) -> &'static str {
        self.label.split([',', '(']).next().unwrap_or_default().trim_end()
    }

    /// Returns the value for the message. `None` leaves the field of the message out.
    pub(super) fn value(&self, text: &str) -> Result<Option<Value>, PageError> {
        let must_be =
            |what: &str| PageError::of_field(self.path, format!("{} {what}", self.term()));
        let units = |max: u64| {
            let number = text.trim().parse().ok().filter(|units| (1..=max).contains(units));
            number.ok_or_else(|| must_be(&format!("must be 1 to {max}")))
        };
        Ok(match self.kind {
            FieldKind::Hidden | FieldKind::RequestId | FieldKind::Text | FieldKind::Check => {
                Some(json!(text))
            }
            FieldKind::Project => Some(json!(id_of(text))),
            FieldKind::HiddenNumber => {
                let number = text.parse::<u64>().ok();
                let invalid =
                    || PageError::invalid(format!("{} must be a whole number", self.name));
                Some(json!(number.ok_or_else(invalid)?.to_string()))
            }
            FieldKind::Attributes => {
                let attributes = attributes_of_text(text);
                Some(json!(
                    attributes
                        .ok_or_else(|| must_be("must be NAME=VALUE, with commas between them"))?
                ))
            }
            FieldKind::Time | FieldKind::Share | FieldKind::OptionalUnits(_)
                if text.trim().is_empty() =>
            {
                None
            }
            FieldKind::Time => {
                let time = time(text).ok_or_else(|| {
                    must_be("must be a time from 1970 to 9999, such as 2026-11-23T18:00")
                })?;
                Some(json!(time.to_string()))
            }
            FieldKind::Ttl(max_days) => {
                let ttl = seconds(text, max_days).ok_or_else(|| {
                    must_be(&format!("must be 1s to {max_days}d, such as 30m, 12h or 7d"))
                })?;
                Some(json!(format!("{ttl}s")))
            }
            FieldKind::Window => {
                let window = humantime::parse_duration(text.trim()).ok();
                let window = window.filter(|window| WINDOWS.contains(window));
                let window = window.ok_or_else(|| {
                    must_be("must be 1 ms to 366 d, such as 30 s, 1 h 30 min or 7 d")
                })?;
                Some(json!(format!("{}.{:09}s", window.as_secs(), window.subsec_nanos())))
            }
            FieldKind::Share => {
                let share = millionths(text);
                Some(json!(share.ok_or_else(|| must_be("must be 0 to 100, such as 25 or 0.5"))?))
            }
            FieldKind::Units(max) | FieldKind::OptionalUnits(max) | FieldKind::Limit(max) => {
                Some(json!(units(max)?.to_string()))
            }
            FieldKind::Choice(all) => {
                let chosen = all.iter().find(|(value, ..)| *value == text);
                let chosen = chosen.ok_or_else(|| must_be("must be one of those in the list"))?;
                Some(json!(chosen.2))
            }
        })
    }

    pub(super) fn render(&self, place: &FormPlace<'_>) -> Markup {
        let value = place.value(self.name);
        let id = format!("{}{}", place.prefix, self.name.replace('_', "-"));
        let error = place.refused.map(|refused| &refused.error);
        let error = error.filter(|error| !error.field.is_empty() && error.field == self.path);
        let hint_id = format!("{id}-hint");
        let described = (!self.hint.is_empty() || error.is_some()).then_some(&hint_id);
        let invalid = error.map(|_| "true");
        let input = match self.kind {
            FieldKind::RequestId => return html! {},
            FieldKind::Hidden | FieldKind::HiddenNumber | FieldKind::Project => {
                // Of a refused form, too: its visitor has seen the state of now.
                return html! { input type="hidden" name=(self.name) value=(place.first(self.name)); };
            }
            FieldKind::Check => {
                return html! {
                    label.check {
                        input type="checkbox" name=(self.name) value="on" checked[value == "on"];
                        (self.label)
                    }
                };
            }
            FieldKind::Choice(all) => html! {
                select id=(id) name=(self.name) aria-invalid=[invalid] aria-describedby=[described] {
                    @for (option, text, _) in all {
                        option value=(option) selected[*option == value] { (text) }
                    }
                }
            },
            kind => html! {
                input id=(id) name=(self.name) value=(value) autocomplete="off" spellcheck="false"
                    type=(kind.input_type())
                    placeholder=[(!self.example.is_empty()).then_some(self.example)]
                    maxlength=[(self.max > 0).then_some(self.max)]
                    aria-invalid=[invalid] aria-describedby=[described];
            },
        };
        html! {
            div.field {
                label for=(id) { (self.label) }
                (input)
                @if described.is_some() {
                    p.hint id=(hint_id) {
                        @if let Some(error) = error { span.bad { (error.sentence()) } " " }
                        (self.hint)
                    }
                }
            }
        }
    }
}

impl FieldKind {
    const fn input_type(self) -> &'static str {
        match self {
            Self::Time => "datetime-local",
            Self::Units(_) | Self::OptionalUnits(_) => "number",
            _ => "text",
        }
    }
}

impl Form {
    /// Creates a form that is sent to a route and makes a message, with a button.
    pub(super) const fn new(
        action: &'static str,
        message: &'static str,
        fields: &'static [Field],
        button: &'static str,
    ) -> Self {
        Self { action, message, hint: "", fields, button, tone: "", choice: None, more: &[] }
    }

    pub(super) const fn hint(self, hint: &'static str) -> Self {
        Self { hint, ..self }
    }

    /// Leaves out the last field.
    pub(super) fn without_last(self) -> Self {
        Self { fields: self.fields.split_last().map_or(self.fields, |(_, others)| others), ..self }
    }

    /// Sets the class of the button.
    pub(super) const fn tone(self, tone: &'static str) -> Self {
        Self { tone, ..self }
    }

    /// Sets the name and the value of the button.
    pub(super) const fn choice(self, name: &'static str, value: &'static str) -> Self {
        Self { choice: Some((name, value)), ..self }
    }

    /// Adds further buttons.
    pub(super) const fn more(self, more: &'static [(&'static str, &'static str)]) -> Self {
        Self { more, ..self }
    }

    /// Returns the message of a form that was sent.
    ///
    /// # Errors
    ///
    /// The first field that is not valid, as far as no call is needed to know.
    pub(super) fn message<M: prost::Message + Default>(
        &self,
        fields: &FormFields,
    ) -> Result<M, PageError> {
        fields.check()?;
        let mut message = json!({});
        for field in self.fields.iter().filter(|field| !field.path.is_empty()) {
            let text = fields.get(field.name);
            if matches!(field.kind, FieldKind::Limit(_))
                && text.trim().eq_ignore_ascii_case("unlimited")
            {
                set(&mut message, "grant.unlimited", Value::Bool(true));
            } else if let Some(value) = field.value(text)? {
                set(&mut message, field.path, value);
            }
        }
        let name = format!("ratelimit.admin.v1.{}", self.message);
        json::message(&name, message).map_err(|error| PageError::invalid(error.to_string()))
    }

    /// Returns what follows `prefix` in the paths of the message that the form sets.
    pub(super) fn paths(&self, prefix: &str) -> Vec<String> {
        let below = self.fields.iter().filter_map(|field| field.path.strip_prefix(prefix));
        below.map(str::to_owned).collect()
    }

    /// Returns the form as it is shown.
    pub(super) fn render(&self, class: &str, place: &FormPlace<'_>) -> Markup {
        let class = format!("stack {class}");
        let (name, value) = self.choice.unzip();
        html! {
            form class=(class.trim_end()) method="post" action=(self.action) data-refused[place.refused.is_some()] {
                (hidden(place.frame, place.refused))
                @for field in self.fields.iter().filter(|field| field.label.is_empty()) { (field.render(place)) }
                @if !self.hint.is_empty() { p.hint { (self.hint) } }
                @for field in self.fields.iter().filter(|field| !field.label.is_empty()) { (field.render(place)) }
                button class=[(!self.tone.is_empty()).then_some(self.tone)] name=[name] value=[value] { (self.button) }
                @if !self.more.is_empty() {
                    p.actions { @for (value, label) in self.more { button name=[name] value=(value) { (label) } } }
                }
            }
        }
    }

    /// Returns the form as it was refused. The problem names the field as people know it.
    pub(super) fn refused(&'static self, fields: FormFields, error: PageError) -> RefusedForm {
        RefusedForm { form: self, fields, error: named(self.fields, error) }
    }
}

/// Returns an error whose problem names its field as people know it.
pub(super) fn named(fields: &[Field], error: PageError) -> PageError {
    let field = fields.iter().find(|field| !field.label.is_empty() && field.path == error.field);
    match field {
        Some(field) if !error.must.is_empty() => {
            PageError { problem: format!("{} {}", field.term(), error.must), ..error }
        }
        _ => error,
    }
}

impl RefusedForm {
    /// Returns this, if it is of the form.
    pub(super) fn of_form(&self, form: &Form) -> Option<&Self> {
        (self.form.action == form.action && self.form.choice == form.choice).then_some(self)
    }

    /// Says why nothing was changed. A change that failed may have been made: its problem says so.
    pub(super) fn notice(&self) -> Markup {
        let is_client_error = self.error.status.is_client_error();
        let what = if is_client_error { "Nothing was changed" } else { "The change failed" };
        failure(&format!("{what}: {}.", self.error.problem.trim_end_matches('.')))
    }
}

impl<'a> FormPlace<'a> {
    /// Returns the value that the page has for a field.
    fn first(&self, name: &str) -> &'a str {
        self.values.iter().find(|(field, _)| *field == name).map_or("", |(_, value)| *value)
    }

    /// Returns what was typed, or else the value that the form begins with.
    fn value(&self, name: &str) -> &'a str {
        self.refused.map_or_else(|| self.first(name), |refused| refused.fields.get(name))
    }
}

/// Returns the hidden fields of every form: the secret of the visitor's forms, and the id of the change.
/// A form that is shown again keeps its id, unless its change is none that can be made under it: the
/// change may have been made, and sent again under the same id it is not made twice.
pub(super) fn hidden(frame: &Frame, refused: Option<&RefusedForm>) -> Markup {
    let kept = refused.map_or("", |refused| refused.error.request_id(&refused.fields));
    let new = if kept.is_empty() { random_id().unwrap_or_default() } else { String::new() };
    html! {
        (frame.secret())
        input type="hidden" name=(Field::REQUEST_ID.name) value={ (kept) (new) };
    }
}

/// Returns 256 random bits as text.
fn random_id() -> Result<String, Unspecified> {
    let mut bytes = [0; 32];
    SystemRandom::new().fill(&mut bytes)?;
    Ok(URL_SAFE_NO_PAD.encode(bytes))
}

/// Sets a member of an object by its path. Objects on the way are made.
fn set(object: &mut Value, path: &str, value: Value) {
    let mut place = object;
    for name in path.split('.') {
        place = &mut place[name];
    }
    *place = value;
}

/// Reads a time as browsers write one, in UTC.
fn time(text: &str) -> Option<Timestamp> {
    let is_time = [16, 19].contains(&text.len()) && text.is_ascii() && text.as_bytes()[10] == b'T';
    let seconds = if text.len() == 16 { ":00" } else { "" };
    let at = format!("{text}{seconds}Z").parse::<Timestamp>().ok();
    at.filter(|at| is_time && at.seconds >= 0)
}

/// Reads a time from now, from 1 s to so many days, in seconds.
fn seconds(text: &str, max_days: u64) -> Option<f64> {
    let max = std::time::Duration::from_secs(max_days * 86_400);
    let parsed = humantime::parse_duration(text.trim()).ok();
    let parsed = parsed.filter(|ttl| (std::time::Duration::from_secs(1)..=max).contains(ttl));
    parsed.map(|ttl| ttl.as_secs_f64())
}

/// Reads a percentage with at most four decimals, in parts per million.
fn millionths(text: &str) -> Option<u32> {
    let text = text.trim().trim_end_matches('%').trim_end();
    let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number(whole) || !is_number(part) || part.len() > 4 {
        return None;
    }
    let share = whole.parse::<u32>().ok()?.checked_mul(10_000)?;
    let share = share.checked_add(format!("{part:0<4}").parse().ok()?)?;
    (share <= EVERY_KEY).then_some(share)
}

/// Reads pairs such as `plan=pro`, with commas between them.
pub(super) fn attributes_of_text(text: &str) -> Option<HashMap<String, String>> {
    let pairs = text.split(',').filter(|pair| !pair.trim().is_empty());
    let pair = |pair: &str| {
        let (name, value) = pair.trim().split_once('=')?;
        Some((name.to_owned(), value.to_owned()))
    };
    pairs.map(pair).collect()
}

#[cfg(test)]
mod tests {
    use rlaas_proto::ratelimit::admin::v1::{
        CreateKeyRequest, SetOverrideRequest, UpdateRuleRequest,
    };
    use rlaas_proto::ratelimit::v1::grant::Kind;

    use super::super::text::exact_span_text;
    use super::*;

    const FORM: Form = Form::new(
        "",
        "SetOverrideRequest",
        &[
            Field::new("limit", "grant.limit", FieldKind::Limit(9)).labelled("Limit, or"),
            Field::new("burst", "grant.burst", FieldKind::OptionalUnits(9)).labelled("Burst"),
            Field::new("ttl", "ttl", FieldKind::Ttl(1)).labelled("Ends after"),
            Field::REASON,
        ],
        "",
    );

    fn fields(text: &str) -> FormFields {
        FormFields::parse(text.as_bytes()).expect("fields")
    }

    #[test]
    fn values_are_at_the_paths_of_their_fields() {
        let text = "limit=7&burst=&ttl=+1h+30m+&reason=%22%5C";
        let message: SetOverrideRequest = FORM.message(&fields(text)).expect("a message");
        let grant = message.grant.expect("a grant");
        assert_eq!((grant.kind, grant.burst), (Some(Kind::Limit(7)), 0));
        assert_eq!((message.ttl.map(|ttl| ttl.seconds), &*message.reason), (Some(5_400), "\"\\"));
        let text = "limit=Unlimited&burst=3&ttl=1d";
        let message: SetOverrideRequest = FORM.message(&fields(text)).expect("a message");
        let grant = message.grant.expect("a grant");
        assert_eq!((grant.kind, grant.burst), (Some(Kind::Unlimited(true)), 3));
    }

    #[test]
    fn times_have_a_unit_and_bounds_and_numbers_too() {
        for text in ["", "1", "0s", "25h", "-1h", "tomorrow", "999999999999999999999y", "<b>"] {
            let error = FORM.message::<SetOverrideRequest>(&fields(&format!("limit=1&ttl={text}")));
            let error = error.expect_err(text);
            assert_eq!(error.problem, "Ends after must be 1s to 1d, such as 30m, 12h or 7d");
            assert_eq!(error.field, "ttl");
        }
        for text in ["", "0", "10", "x", "-1"] {
            let error =
                FORM.message::<SetOverrideRequest>(&fields(&format!("limit={text}&ttl=1h")));
            assert_eq!(error.expect_err(text).problem, "Limit must be 1 to 9");
        }
    }

    #[test]
    fn ends_are_times_in_utc() {
        const KEY: Form = Form::new(
            "",
            "CreateKeyRequest",
            &[Field::new("end", "key.expires_at", FieldKind::Time).labelled("End (UTC)")],
            "",
        );
        let end = |text: &str| {
            let message = KEY.message::<CreateKeyRequest>(&fields(&format!("end={text}")));
            message.map(|message| message.key.unwrap_or_default().expires_at)
        };
        let second = Timestamp { seconds: 86_400, nanos: 0 };
        for text in ["1970-01-02T00:00", "1970-01-02T00:00:00"] {
            assert_eq!(end(text), Ok(Some(second)), "{text}");
        }
        assert_eq!(end(""), Ok(None));
        for text in ["1970-01-02", "1969-12-31T00:00", "1970-01-02 00:00", "1970-13-02T00:00", "x"]
        {
            let error = end(text).expect_err(text);
            assert!(error.sentence().starts_with("End must be"), "{error:?}");
        }
    }

    #[test]
    fn windows_and_shares_are_read_as_pages_show_them() {
        const RULE: Form = Form::new(
            "",
            "UpdateRuleRequest",
            &[
                Field::new("window", "rule.window", FieldKind::Window).labelled("Window"),
                Field::new("share", "rule.enforce_ppm", FieldKind::Share).labelled("Share"),
            ],
            "",
        );
        let rule = |window: &str, share: &str| {
            let fields = fields(&format!("window={window}&share={share}"));
            let message = RULE.message::<UpdateRuleRequest>(&fields);
            message.map(|message| message.rule.unwrap_or_default())
        };
        for micros in [1_000, 1_500_000, 5_415_000_000, 366 * 86_400_000_000] {
            let (seconds, nanos) = (micros / 1_000_000, micros % 1_000_000 * 1_000);
            let nanos = i32::try_from(nanos).expect("less than a second");
            let window = prost_types::Duration { seconds, nanos };
            let read = rule(&exact_span_text(&window).replace(' ', "+"), "").expect("a rule");
            assert_eq!((read.window, read.enforce_ppm), (Some(window), None));
        }
        for (text, share) in [("25", 250_000), ("0.5", 5_000), ("100", 1_000_000), ("0", 0)] {
            assert_eq!(rule("1h", text).map(|rule| rule.enforce_ppm), Ok(Some(share)), "{text}");
        }
        for text in ["-1", "101", "x", ".5", "1.", "0.00001", "1e1", "99999999999"] {
            let error = rule("1h", text).expect_err(text);
            assert_eq!(error.field, "rule.enforce_ppm", "{text}");
        }
        for text in ["", "0s", "367d", "1", "x"] {
            assert_eq!(rule(text, "").expect_err(text).field, "rule.window", "{text}");
        }
        assert_eq!(RULE.paths("rule."), ["window", "enforce_ppm"]);
    }
}
