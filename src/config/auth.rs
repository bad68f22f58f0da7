//! The section `auth`: tokens, client certificates and their roles; the issuer is in `oidc`.

use std::collections::{HashMap, HashSet};
use std::ops::RangeInclusive;
use std::time::Duration;

use figment::value::Value;
use rlaas_auth::{
    ApiKeyMode, ApiKeySettings, AuthSettings, Grants, ProjectId, Role, Roles, TokenEntry, TokenHash,
};

use super::rules;
use super::section::Section;
use super::setting::Setting;
use super::values::{self, Invalid, Read};
use super::watch::FileSnapshot;
use super::{StoreSettings, oidc};
use crate::rules::spec::RulesSpec;
use crate::server::{ServerSettings, Tls};

/// Maximum number of tokens: each call's token is compared with all of them.
const MAX_TOKENS: usize = 1_000;
/// Maximum number of client names.
const MAX_CLIENTS: usize = 100_000;

const AUTH: Setting = Setting::new(
    "auth",
    "Authorization. If no token, no client and no issuer is listed, every caller may request decisions and \
     read the configuration, and only local callers may do more: those on loopback or a Unix \
     domain socket, without a proxy. Health, reflection, metrics and probes never require a role.",
);
const TOKENS: Setting = Setting::new(
    "tokens",
    "Bearer tokens. Changes apply without a restart, but enabling auth needs one.",
);
const TOKEN_NAME: Setting =
    Setting::new("name", "Name of the token, unique in the list.").example("shop");
const SHA256: Setting =
    Setting::new("sha256", "SHA-256 of the token: printf %s \"$TOKEN\" | sha256sum.")
        .example("'0000000000000000000000000000000000000000000000000000000000000000'");
const ROLES: Setting = Setting::new(
    "roles",
    "check may request decisions; operate may see and repair the state of keys (inspect, reset, \
     refund, explain, watch); admin may decide about keys (overrides, bans) and read the audit. \
     operate and admin may read the configuration (GetConfig); metrics sees the names of projects in \
     /metrics, where others do not. None includes another.",
)
.example("[check]");
const PROJECTS: Setting = Setting::new(
    "projects",
    "Ids of the projects for which the roles are: for their keys and rules, and for nothing else. \
     Default: all projects, and what belongs to none.",
)
.example("[shop]");
const CLIENTS: Setting =
    Setting::new("clients", "Client certificates. Requires server.tls.client-ca.");
const CLIENT_NAME: Setting =
    Setting::new("name", "DNS name or URI from the subject alternative names of the certificate.")
        .example("spiffe://example.org/ns/shop/sa/web");
const API_KEYS: Setting = Setting::new(
    "api-keys",
    "API keys of projects, in x-api-key or as api_key in POST /check. off: ignored; accepted: a key \
     that is shown must be valid, and the rules of its project decide; required: each request for a \
     decision must show one. Envoy's service takes none. Default: accepted with the memory store \
     while no rule of a file without a project uses api_key, else off; then an x-api-key that does \
     not begin with rlaas_ is ignored. Decided at the start.",
)
.example("accepted");
const API_KEYS_MAX_AGE: Setting = Setting::new(
    "api-keys-max-age",
    "Time for which API keys are accepted as last known while the store is away, then they are \
     UNAVAILABLE; default any time.",
)
.example("1h");
const MAX_AGES: RangeInclusive<Duration> = Duration::from_secs(10)..=Duration::from_hours(8_760);
const VALID_AGE: &str = "must be a duration from 10s to 365d, such as 1h";
/// The notice for a configuration that was written when `admin` was for `GetConfig` alone.
const ADMIN_ONLY: &str = "role admin now also grants overrides, bans and the audit; operate is \
                          enough to read the configuration (and inspects, resets, refunds)";

/// Decides about API keys if nobody has. `store` and `spec` are those of the configuration, `started_with`
/// is the mode in force if the server runs.
pub(super) fn decide_api_keys(
    root: &Section<'_>,
    keys: &mut ApiKeySettings,
    store: &StoreSettings,
    spec: &RulesSpec,
    started_with: Option<ApiKeyMode>,
) {
    if keys.mode != ApiKeyMode::AcceptedByDefault {
        return;
    }
    let uses_keys = !rules::api_key_problems_of(spec).is_empty();
    let (decided, reason) = match (started_with, store) {
        (Some(started_with), _) => (started_with, "decided at the start"),
        _ if cfg!(not(feature = "admin")) => (ApiKeyMode::Off, "this build has no projects"),
        (None, StoreSettings::Redis(_)) => (ApiKeyMode::Off, "the store is redis"),
        _ if uses_keys => (ApiKeyMode::Off, "a rule of a file uses api_key"),
        _ => (keys.mode, "memory store, and no rule uses api_key"),
    };
    (keys.mode, keys.default) = (decided, Some(reason));
    root.complete("auth.api-keys", decided.name(), reason);
}

/// Reads the section. Clients are identified by certificates, so it depends on `server.tls`. Also
/// returns snapshots of the files that it names.
pub(super) fn read(
    root: &mut Section<'_>,
    server: &ServerSettings,
) -> (AuthSettings, ApiKeySettings, Vec<FileSnapshot>) {
    let mut section = root.section(AUTH);
    let mut names = HashSet::new();
    let sections = list(&mut section, TOKENS, MAX_TOKENS).into_iter();
    let tokens = sections.filter_map(|section| token(section, &mut names)).collect();
    let mut clients = HashMap::new();
    for section in list(&mut section, CLIENTS, MAX_CLIENTS) {
        client(section, &mut clients);
    }
    let knows_certificates = server.tls.as_ref().is_some_and(Tls::requires_client_certificates);
    if !clients.is_empty() && !knows_certificates && root.is_valid() {
        section.refuse("clients", Invalid::new("requires server.tls.client-ca"));
    }
    let mode = section.optional(API_KEYS, api_key_mode);
    if !section.has(API_KEYS.key) {
        section.leave_open(API_KEYS);
    }
    let api_keys = ApiKeySettings {
        mode: mode.unwrap_or(ApiKeyMode::AcceptedByDefault),
        default: None,
        max_age: section.optional(API_KEYS_MAX_AGE, |value| {
            let (age, shown) = values::duration(value, MAX_AGES, VALID_AGE)?;
            Ok((age.into(), shown))
        }),
    };
    let (oidc, files) = oidc::read(&mut section);
    let settings = AuthSettings { tokens, clients, oidc };
    for key in [TOKENS.key, CLIENTS.key] {
        let grants_listed = settings.lists(Role::Admin) && !settings.lists(Role::Operate);
        if section.has(key) && settings.oidc.is_none() && grants_listed {
            section.warn(key, ADMIN_ONLY);
        }
    }
    section.close();
    (settings, api_keys, files)
}

fn api_key_mode(value: &Value) -> Read<ApiKeyMode> {
    // YAML reads an unquoted `off` as a boolean.
    if matches!(value, Value::Bool(_, false)) {
        return Ok((ApiKeyMode::Off, "off".to_owned()));
    }
    let mode = |mode: ApiKeyMode| (mode.name(), mode);
    values::word(value, &[ApiKeyMode::Off, ApiKeyMode::Accepted, ApiKeyMode::Required].map(mode))
}

fn list<'a>(auth: &mut Section<'a>, setting: Setting, most: usize) -> Vec<Section<'a>> {
    let sections = auth.list(setting);
    if sections.len() > most {
        auth.refuse(setting.key, Invalid::from_text(format!("must have at most {most} entries")));
    }
    sections
}

fn token(mut section: Section<'_>, names: &mut HashSet<String>) -> Option<TokenEntry> {
    let name = section.required(TOKEN_NAME, values::text);
    if name.as_ref().is_some_and(|name| !names.insert(name.clone())) {
        section.refuse("name", Invalid::new("another token has this name"));
    }
    let sha256 = section.required(SHA256, hash);
    let roles = grants(&mut section);
    section.close();
    Some(TokenEntry { name: name?.into(), sha256: sha256?, roles: roles? })
}

fn client(mut section: Section<'_>, clients: &mut HashMap<String, Grants>) {
    let name = section.required(CLIENT_NAME, values::text);
    let roles = grants(&mut section);
    if let Some((name, roles)) = name.zip(roles)
        && clients.insert(name, roles).is_some()
    {
        section.refuse("name", Invalid::new("another client has this name"));
    }
    section.close();
}

fn grants(section: &mut Section<'_>) -> Option<Grants> {
    let roles = section.required(ROLES, roles);
    let projects = section.optional(PROJECTS, projects);
    match projects {
        None => (!section.has(PROJECTS.key)).then(|| roles.map(Grants::from))?,
        Some(projects) => roles.map(|roles| Grants::within(projects, roles)),
    }
}

fn projects(value: &Value) -> Read<Vec<ProjectId>> {
    let invalid = || Invalid::new("must be a list of 1 to 1000 ids of projects");
    let texts = values::texts(value).map_err(|_| invalid())?;
    let ids: Option<Vec<ProjectId>> = texts.iter().map(|text| text.parse().ok()).collect();
    let ids = ids.filter(|ids| (1..=Grants::MAX_PROJECTS).contains(&ids.len()));
    Ok((ids.ok_or_else(invalid)?, format!("[{}]", texts.join(", "))))
}

fn hash(value: &Value) -> Read<TokenHash> {
    // A number is not a string, and would have the wrong length.
    let hash = value.as_str().unwrap_or_default().parse()?;
    Ok((hash, "***".to_owned()))
}

fn roles(value: &Value) -> Read<Roles> {
    let invalid = || Invalid::new("must be a list of check, operate, admin and metrics");
    let texts = values::texts(value).map_err(|_| invalid())?;
    let role = |text: &String| Role::ALL.into_iter().find(|role| role.name() == text);
    let roles: Option<Roles> = texts.iter().map(role).collect();
    Ok((roles.ok_or_else(invalid)?, format!("[{}]", texts.join(", "))))
}
