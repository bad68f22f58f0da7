//! Changes of one key: their forms, and from a form to the change.

use axum::response::Response;
use maud::{Markup, html};
use rlaas_proto::LOWERS_LIMIT;
use rlaas_proto::ratelimit::admin::v1::{
    BanKeyRequest, BanKeyResponse, Change, ClearOverrideRequest, InspectRequest, OverrideKind,
    RefundRequest, ResetRequest, SetOverrideRequest,
};
use rlaas_proto::ratelimit::v1::Grant;
use rlaas_proto::ratelimit::v1::grant::Kind;
use tonic::metadata::MetadataMap;

use super::render::KeyPage;
use super::{MatchingKey, link, page, selector};
use crate::calls::{
    CHANGE_TIME, EVERY_PROJECT, READ_TIME, everywhere, id_of, replayed, warning, within,
};
use crate::fields::FormFields;
use crate::form::{Field, FieldChoice, FieldKind, Form, FormPlace, RefusedForm};
use crate::page_error::PageError;
use crate::rule_words::units;
use crate::text::{foreign, grouped, time_text};
use crate::visit::{Visit, Visitor};

/// Most units of a limit.
const MAX_UNITS: u64 = 999_999_999_999_999;
/// The fields that name the key, and the change.
const SEARCH: Field = Field::new("search", "", FieldKind::Hidden);
const RULE: Field = Field::new("of_rule", "", FieldKind::Hidden);
const KIND: &str = "change";
const BAN_ON_ALL: &str = "ban-project";
const SET_LIMIT: &str = "set-limit";
/// Buttons beside [`SET_LIMIT`]: what they multiply the fields by, or `unlimited`.
const RAISES: [(&str, &str); 3] =
    [("set-limit 2", "× 2"), ("set-limit 10", "× 10"), ("set-limit unlimited", "Unlimited")];
/// The field with the values of which a visitor has seen that.
const SEEN: Field = Field::new("seen", "", FieldKind::Hidden);
/// Most names of rules in a sentence.
const MAX_NAMED: usize = 5;
const UNITS: Field =
    Field::new("units", "units", FieldKind::Units(u32::MAX as u64)).labelled("Units").example("10");
const LIMIT: Field = Field::new("limit", "grant.limit", FieldKind::Limit(MAX_UNITS))
    .labelled("Limit, or \"unlimited\"")
    .example("500");
const BURST: Field = Field::new("burst", "grant.burst", FieldKind::OptionalUnits(MAX_UNITS))
    .labelled("Most at once, if another number");
/// Usual times until the end, the first of which is preselected.
const LASTS: [FieldChoice; 3] =
    [("1h", "1 hour", ""), ("15m", "15 minutes", ""), ("1d", "1 day", "")];
const LAST: Field = Field::new("lasts", "", FieldKind::Choice(&LASTS)).labelled("Ends after");
const TTL: Field =
    Field::new("ttl", "ttl", FieldKind::Ttl(366)).labelled("Another time, instead").example("12h");
const REFILL: Field =
    Field::new("refill", "", FieldKind::Check).labelled("and give back what was used");
const EVERYWHERE: Field =
    Field::new("everywhere", "", FieldKind::Check).labelled("in every project that you administer");
const REASON: Field = Field::NEEDED_REASON;
const REQUEST_ID: Field = Field::REQUEST_ID;

/// A change of a key.
struct KeyChange {
    name: &'static str,
    title: &'static str,
    form: Form,
}

/// All changes: their names, titles, hints and forms.
static ALL: [KeyChange; 7] = [
    KeyChange::new(
        SET_LIMIT,
        "Raise the limit",
        "For this key alone, until the end. × 2 and × 10 are of the numbers below. Less than now must be sent twice.",
        form(
            "SetOverrideRequest",
            &[SEARCH, RULE, SEEN, REQUEST_ID, LIMIT, BURST, LAST, TTL, REASON, REFILL],
            "Set the limit",
        )
        .more(&RAISES),
    ),
    KeyChange::new(
        "reset",
        "Reset",
        "As if nothing had been used. Bans and other limits stay.",
        form("ResetRequest", &[SEARCH, RULE, REQUEST_ID, REASON], "Reset this key"),
    ),
    KeyChange::new(
        "refund",
        "Refund",
        "Gives back units that were used, up to full.",
        form("RefundRequest", &[SEARCH, RULE, REQUEST_ID, UNITS, REASON], "Refund units"),
    ),
    KeyChange::new(
        "ban",
        "Ban",
        "Refuses every request of this key until the end.",
        form("SetOverrideRequest", &[SEARCH, RULE, REQUEST_ID, LAST, TTL, REASON], "Ban this key")
            .tone("danger"),
    ),
    KeyChange::new(
        "unban",
        "End the ban",
        "On this rule alone: the page Exceptions ends all bans of a key.",
        form("ClearOverrideRequest", &[SEARCH, RULE, REQUEST_ID, REASON], "End the ban now"),
    ),
    KeyChange::new(
        "clear-limit",
        "End the other limit",
        "The limit of the rule is back from now on.",
        form("ClearOverrideRequest", &[SEARCH, RULE, REQUEST_ID, REASON], "Remove the other limit"),
    ),
    KeyChange::new(
        BAN_ON_ALL,
        "Ban on all rules of the project",
        "On each overridable rule that is keyed by these parts. Rules that are made later are not covered.",
        form("BanKeyRequest", &[SEARCH, RULE, LAST, TTL, REASON, EVERYWHERE], "Ban on all rules")
            .tone("danger"),
    ),
];

const fn form(message: &'static str, fields: &'static [Field], button: &'static str) -> Form {
    Form::new("key", message, fields, button)
}

impl KeyChange {
    const fn new(name: &'static str, title: &'static str, hint: &'static str, form: Form) -> Self {
        Self { name, title, form: form.hint(hint).choice(KIND, name) }
    }

    /// Returns `true` for changes of the role admin; the others are of the role operate.
    fn needs_admin(&self) -> bool {
        !matches!(self.name, "reset" | "refund")
    }
}

/// Makes a change, and leads back to the keys. A change that is refused is shown again.
pub(crate) async fn change(visit: Visit) -> Response {
    let Visit { visitor, fields, .. } = &visit;
    let search = match FormFields::parse(fields.get(SEARCH.name).as_bytes()) {
        Ok(search) => search,
        Err(error) => return page(&visit, Err(error.into()), None).await,
    };
    let name = fields.get(KIND).split(' ').next().unwrap_or_default();
    let Some(change) = ALL.iter().find(|change| change.name == name) else {
        let error = PageError::invalid("change must be one of the page's");
        return page(&visit, Err(error), None).await;
    };
    match make(visitor, fields, &search, change).await {
        Ok(outcome) => visitor.done(link(&search), &outcome),
        Err(error) => {
            let refused = change.form.refused(fields.clone(), error);
            page(&visit, Ok(search), Some(refused)).await
        }
    }
}

/// Makes the change of a form, and returns what was done.
async fn make(
    visitor: &Visitor,
    fields: &FormFields,
    search: &FormFields,
    change: &KeyChange,
) -> Result<String, PageError> {
    let project = id_of(search.get("project"));
    let (is_admin, is_operator) = (visitor.is_admin(project), visitor.is_operator(project));
    match (change.needs_admin(), is_admin, is_operator) {
        (true, false, true) => return Err(PageError::forbidden("admin")),
        (false, true, false) => return Err(PageError::forbidden("operate")),
        _ => {}
    }
    let rule = fields.get(RULE.name);
    if rule.is_empty() || fields.get(REQUEST_ID.name).is_empty() {
        return Err(PageError::invalid("the form must be that of a key: load the page again"));
    }
    fields.check()?;
    let is_typed = !fields.get(TTL.name).trim().is_empty();
    let with_end = fields.clone().with(TTL.name, fields.get(LAST.name));
    let fields = if is_typed { fields } else { &with_end };
    if change.name == BAN_ON_ALL {
        return ban_on_all(visitor, fields, search, change).await;
    }
    let fields = &multiplied(fields);
    let (changed, warning) = send(visitor, fields, search, change).await?;
    // A long answer is repeated without its keys.
    if changed.before.is_empty() && !changed.replayed {
        return Ok(format!("Nothing was changed: the request does not meet rule {rule} any more."));
    }
    let refill = if change.name == SET_LIMIT && fields.get(REFILL.name) == "on" {
        match refill(visitor, fields, search).await {
            Ok(()) => " What was used is given back.".to_owned(),
            Err(error) => format!(
                " But what was used is not given back: {} Reset the key for that.",
                error.sentence()
            ),
        }
    } else {
        String::new()
    };
    Ok(outcome(change.name, rule, &changed) + &refill + &warning)
}

/// Returns what a form says of a limit, with its button.
fn values_in(fields: &FormFields) -> String {
    [LIMIT.name, BURST.name, KIND].map(|name| fields.get(name)).join("; ")
}

/// Returns the fields of a form with the limit that its button makes of them. [`SEEN`] is empty unless it has
/// the values of the form.
fn multiplied(fields: &FormFields) -> FormFields {
    let is_seen = fields.get(SEEN.name) == values_in(fields);
    let seen = fields.clone().with(SEEN.name, if is_seen { "yes" } else { "" });
    let times = fields.get(KIND).split_once(' ').map_or("1", |(_, times)| times);
    let Ok(times) = times.parse::<u64>() else {
        return seen.with(LIMIT.name, "unlimited").with(BURST.name, "");
    };
    [LIMIT.name, BURST.name].into_iter().fold(seen, |multiplied, name| {
        let units = fields.get(name).trim().parse::<u64>().unwrap_or_default();
        let units = units.saturating_mul(times);
        if units > 0 { multiplied.with(name, &units.to_string()) } else { multiplied }
    })
}

/// Resets the key of a form that has set its limit.
async fn refill(
    visitor: &Visitor,
    fields: &FormFields,
    search: &FormFields,
) -> Result<(), PageError> {
    let request = ResetRequest {
        selector: Some(selector(search, fields.get(RULE.name))?),
        reason: fields.get(REASON.name).to_owned(),
        request_id: format!("{}-reset", fields.get(REQUEST_ID.name)),
    };
    visitor.admin().reset(within(CHANGE_TIME, request)).await?;
    Ok(())
}

/// Bans the key of a form on all rules of its project that are keyed as the one of the form.
async fn ban_on_all(
    visitor: &Visitor,
    fields: &FormFields,
    search: &FormFields,
    change: &KeyChange,
) -> Result<String, PageError> {
    let typed: BanKeyRequest = change.form.message(fields)?;
    let inspect = InspectRequest { selector: Some(selector(search, fields.get(RULE.name))?) };
    let keys = visitor.admin().inspect(within(READ_TIME, inspect)).await?.into_inner().keys;
    let key = keys.into_iter().next().and_then(|state| state.key);
    let parts = key.unwrap_or_default().parts;
    let is_everywhere = fields.get(EVERYWHERE.name) == "on";
    let project = if is_everywhere { EVERY_PROJECT } else { id_of(search.get("project")) };
    let project_id = project.to_owned();
    let request = BanKeyRequest { project_id, parts, ..typed };
    let banned = visitor.admin().ban_key(within(CHANGE_TIME, request)).await?;
    let warning = warning(visitor, banned.metadata());
    Ok(ban_outcome(banned.get_ref()) + &warning)
}

/// Returns what became of each rule of a project.
fn ban_outcome(banned: &BanKeyResponse) -> String {
    let parts = [
        ("The key is banned on", &banned.banned),
        ("It was banned before on", &banned.banned_before),
        ("Not banned, since they are not overridable:", &banned.not_overridable),
        ("Keyed otherwise, so not looked at:", &banned.keyed_otherwise),
    ];
    let parts = parts.iter().filter(|(_, rules)| !rules.is_empty());
    let parts = parts.map(|(what, rules)| format!("{what} {}. ", named(rules)));
    let none = if banned.banned.is_empty() { "No ban was set. " } else { "" };
    let everywhere = everywhere(banned.everywhere_by.as_ref());
    let parts: String = parts.collect();
    format!("{none}{parts}Rules that are made later are not covered.{everywhere}")
}

/// Returns the first names, and the number of the others.
fn named(names: &[String]) -> String {
    let first = names[..names.len().min(MAX_NAMED)].join(", ");
    let more = names.len().saturating_sub(MAX_NAMED);
    if more > 0 { format!("{first} and {} more", grouped(more as u64)) } else { first }
}

/// Sends the change of a form. Returns its effect, and what the service warns of.
async fn send(
    visitor: &Visitor,
    fields: &FormFields,
    search: &FormFields,
    change: &KeyChange,
) -> Result<(Change, String), PageError> {
    let selector = Some(selector(search, fields.get(RULE.name))?);
    let mut client = visitor.admin();
    let made = |metadata: &MetadataMap, change: Option<Change>| {
        (change.unwrap_or_default(), warning(visitor, metadata))
    };
    Ok(match change.name {
        "reset" => {
            let request = ResetRequest { selector, ..change.form.message(fields)? };
            let made_by = client.reset(within(CHANGE_TIME, request)).await?;
            made(made_by.metadata(), made_by.get_ref().change.clone())
        }
        "refund" => {
            let request = RefundRequest { selector, ..change.form.message(fields)? };
            let made_by = client.refund(within(CHANGE_TIME, request)).await?;
            made(made_by.metadata(), made_by.get_ref().change.clone())
        }
        "ban" | SET_LIMIT => {
            let typed: SetOverrideRequest = change.form.message(fields)?;
            let banned = Grant { kind: Some(Kind::Banned(true)), burst: 0 };
            let grant = Some(typed.grant.unwrap_or(banned));
            let raise_only = change.name == SET_LIMIT && fields.get(SEEN.name).is_empty();
            let request = SetOverrideRequest { selector, grant, raise_only, ..typed };
            let made_by = client.set_override(within(CHANGE_TIME, request)).await?;
            made(made_by.metadata(), made_by.get_ref().change.clone())
        }
        name => {
            let is_ban = name == "unban";
            let kind = if is_ban { OverrideKind::Ban } else { OverrideKind::Grant }.into();
            let request = ClearOverrideRequest { selector, kind, ..change.form.message(fields)? };
            let made_by = client.clear_override(within(CHANGE_TIME, request)).await?;
            made(made_by.metadata(), made_by.get_ref().change.clone())
        }
    })
}

/// Returns a change in one sentence.
fn outcome(name: &str, rule: &str, change: &Change) -> String {
    let both = change.before.first().zip(change.after.first());
    let both = both.and_then(|(before, after)| after.change_words(before, units));
    let both = both.map(|both| format!(": {both}")).unwrap_or_default();
    let text = match name {
        "reset" => format!("The key of rule {rule} is reset"),
        "refund" => format!("Units of the key of rule {rule} are refunded"),
        "ban" => format!("The key of rule {rule} is banned{}", until(change, true)),
        "unban" => format!("The key of rule {rule} is not banned any more"),
        SET_LIMIT => format!("The key of rule {rule} has another limit{}", until(change, false)),
        _ => format!("The key of rule {rule} has the limit of the rule again"),
    };
    let everywhere = everywhere(change.everywhere_by.as_ref());
    format!("{}{text}{both}.{everywhere}", replayed(change.replayed))
}

/// Returns the end of the ban, or of the other limit, that a change has set.
fn until(change: &Change, is_ban: bool) -> String {
    let set = change.after.iter().flat_map(|state| &state.overrides).find(|entry| {
        let grant = entry.grant.as_ref().and_then(|grant| grant.kind.as_ref());
        grant.is_some_and(|grant| is_ban == matches!(grant, Kind::Banned(_)))
    });
    let ends_at = set.and_then(|entry| entry.expires_at.as_ref());
    ends_at.map(|at| format!(" until {}", time_text(at))).unwrap_or_default()
}

impl KeyPage {
    /// Shows the forms of the changes that the visitor may make of a key; while the store is away, that of a
    /// change that was refused.
    pub(super) fn forms(&self, position: usize, met: &MatchingKey) -> Markup {
        let (visitor, project) = (&self.frame.visitor, id_of(met.search.get("project")));
        let (is_admin, is_operator) = (visitor.is_admin(project), visitor.is_operator(project));
        // What is not known may be there.
        let has = |is_ban: bool| {
            met.met.state.as_ref().is_none_or(|state| {
                let grants = state.overrides.iter().filter_map(|entry| entry.grant.as_ref()?.kind);
                grants.into_iter().any(|kind| is_ban == matches!(kind, Kind::Banned(_)))
            })
        };
        let may_override = is_admin && met.rule.overridable;
        let parts = met.met.key.as_ref().map(|key| &*key.parts).unwrap_or_default();
        let shown = ALL.iter().filter(|change| match change.name {
            BAN_ON_ALL => may_override && is_operator && !parts.is_empty(),
            "unban" => may_override && has(true),
            "clear-limit" => may_override && has(false),
            _ if change.needs_admin() => may_override,
            _ => is_operator,
        });
        let is_away = self.is_store_away();
        let shown = shown.filter(|change| !is_away || self.refused_of(met, change).is_some());
        html! {
            @if is_operator || may_override {
                div.changes { @for change in shown { (self.form(position, met, change)) } }
            }
            @if is_admin && !may_override {
                p.hint { "Bans and other limits need a rule with " code { "overridable: true" } "." }
            }
        }
    }

    /// Returns what was refused of a change of a key.
    fn refused_of(&self, met: &MatchingKey, change: &KeyChange) -> Option<&RefusedForm> {
        let refused = self.refused.as_ref().and_then(|refused| refused.of_form(&change.form));
        refused.filter(|refused| refused.fields.get(RULE.name) == met.rule.name)
    }

    fn form(&self, position: usize, met: &MatchingKey, change: &KeyChange) -> Markup {
        let refused = self.refused_of(met, change);
        let prefix = format!("{}-{position}-", change.name);
        let link = link(&met.search);
        // Giving back is for another role than the limit.
        let is_operator = self.frame.visitor.is_operator(id_of(met.search.get("project")));
        let own = if change.name == BAN_ON_ALL {
            self.choices.own_projects(&self.frame.visitor)
        } else {
            Vec::new()
        };
        let is_alone =
            change.name == SET_LIMIT && !is_operator || change.name == BAN_ON_ALL && own.len() < 2;
        let form = if is_alone { change.form.without_last() } else { change.form };
        let seen = refused.filter(|refused| refused.error.reason == LOWERS_LIMIT);
        let seen = seen.map(|refused| values_in(&refused.fields)).unwrap_or_default();
        let [limit, burst] = met.limit_in_force();
        let values = [
            (SEARCH.name, link.query()),
            (RULE.name, &met.rule.name),
            (SEEN.name, &seen),
            (LIMIT.name, &limit),
            (BURST.name, &burst),
        ];
        let place = FormPlace { frame: &self.frame, prefix: &prefix, values: &values, refused };
        html! {
            details id={ (prefix) "form" } open[refused.is_some()] {
                summary { (change.title) }
                (form.render("", &place))
                @if own.len() > 1 { p.hint { "Projects that you administer: " (foreign(&named(&own))) } }
            }
        }
    }
}
