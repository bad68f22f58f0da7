//! API keys: `x-api-key` names the project of a call.
//!
//! A key gives the role `check` in its project and nothing else. Each key that a call shows must be
//! valid, whatever else the call shows, and all must be of one project. Envoy's service takes no API
//! keys.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use http::{Extensions, HeaderName, HeaderValue, Request};
use rlaas_core::clock::{Clock, Micros};
use rlaas_core::rules::Attributes;
use rlaas_limiter::Limiter;
use thiserror::Error;
use tokio::sync::watch;
use tracing::warn;

use super::api_key_text::{ApiKeyText, MalformedApiKey};
use super::known_keys::{KeyHolder, KeyRefusal, KnownApiKeys, NoApiKeys};
use super::project_id::ProjectId;
use super::roles::Permission;

/// The header with an API key. Also the name in the metadata of gRPC.
pub const API_KEY_HEADER: HeaderName = HeaderName::from_static("x-api-key");
/// The attribute that holds the id of the first key of its line.
const ATTRIBUTE: &str = "api_key";
const KEYS_OFF: &str = "the API key was not checked: auth.api-keys is off";
const FOREIGN_KEY: &str = "x-api-key was ignored: it is no API key of this service, which begins with rlaas_; \
                           auth.api-keys: accepted refuses such calls";

/// Whether calls may or must show an API key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ApiKeyMode {
    /// Keys are ignored, and `api_key` is an attribute like others.
    #[default]
    Off,
    /// A key that is shown must be valid. In `x-api-key`, a text without the prefix of our keys is
    /// somebody else's, and ignored: nobody has chosen this mode.
    AcceptedByDefault,
    /// A key that is shown must be valid.
    Accepted,
    /// Each request for a decision must show a key.
    Required,
}

impl ApiKeyMode {
    /// Returns the word of the setting.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Accepted | Self::AcceptedByDefault => "accepted",
            Self::Required => "required",
        }
    }
}

/// Settings of API keys.
#[derive(Clone, Copy, Debug, Default)]
pub struct ApiKeySettings {
    /// Whether calls may or must show one.
    pub mode: ApiKeyMode,
    /// The reason for the mode; `None` if it is set.
    pub default: Option<&'static str>,
    /// How old the knowledge of the keys in force may be; `None`: any age.
    pub max_age: Option<Micros>,
}

/// Finds the projects of calls by their API keys. The default takes none. Clones share the keys.
#[derive(Clone, Debug)]
pub struct ApiKeys {
    settings: ApiKeySettings,
    keyring: Arc<dyn KnownApiKeys>,
    clock: Clock,
    /// Whether callers without a key name projects.
    are_projects_named: bool,
    /// Logs once that a key was shown and not checked.
    is_logged: Arc<OnceLock<()>>,
}

/// The project of a call, as its API key says. Extension of each request while API keys are not off.
#[derive(Clone, Debug, Default)]
pub struct Tenant(Option<Arc<KeyHolder>>);

/// The reason why the API keys of a call are refused.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum ApiKeyRefusal {
    /// The call shows no key.
    #[error("an API key is required (x-api-key)")]
    Missing,
    /// The call shows keys of several projects.
    #[error("the API keys are of different projects")]
    Disagree,
    /// A key is not valid.
    #[error(transparent)]
    Key(#[from] KeyRefusal),
}

impl ApiKeyRefusal {
    /// Returns the value of the label `reason` of metrics.
    pub(super) const fn reason(self) -> &'static str {
        match self {
            Self::Missing => "api_key_missing",
            Self::Disagree => "api_key_disagrees",
            Self::Key(KeyRefusal::Malformed(MalformedApiKey::Form)) => "api_key_malformed",
            Self::Key(KeyRefusal::Malformed(MalformedApiKey::Checksum)) => "api_key_checksum",
            Self::Key(KeyRefusal::Unknown) => "api_key_unknown",
            Self::Key(KeyRefusal::Expired) => "api_key_expired",
            Self::Key(KeyRefusal::Revoked) => "api_key_revoked",
            Self::Key(KeyRefusal::Unavailable) => "api_key_unavailable",
        }
    }
}

impl Default for ApiKeys {
    fn default() -> Self {
        Self {
            settings: ApiKeySettings::default(),
            keyring: Arc::new(NoApiKeys::default()),
            clock: Clock::default(),
            are_projects_named: false,
            is_logged: Arc::default(),
        }
    }
}

impl ApiKeys {
    /// Takes the keys of `keyring`.
    pub fn new(settings: ApiKeySettings, keyring: impl KnownApiKeys + 'static) -> Self {
        Self { settings, keyring: Arc::new(keyring), ..Self::default() }
    }

    /// Takes no keys, by the settings of a service without projects.
    pub fn without_projects(settings: ApiKeySettings) -> Self {
        Self { settings, ..Self::default() }
    }

    /// Sets whether callers without a key name projects, as Envoy may: then those in force must be known.
    #[must_use]
    pub fn with_named_projects(self, are_projects_named: bool) -> Self {
        Self { are_projects_named, ..self }
    }

    /// Returns `true` if the projects in force are known.
    pub fn are_projects_known(&self) -> bool {
        self.keyring.is_known() && !self.keyring.is_barred()
    }

    /// Returns `true` unless keys are ignored.
    pub fn are_on(&self) -> bool {
        self.settings.mode != ApiKeyMode::Off
    }

    /// Returns `true` if neither keys nor projects are used, or those in force are known, or will soon be known to be none;
    /// `false` while the store may not know the projects in force, or its journal is damaged.
    pub fn are_ready(&self) -> bool {
        let needs_projects = self.are_on() || self.are_projects_named;
        if needs_projects { self.keyring.is_ready() } else { !self.keyring.is_barred() }
    }

    /// Returns a receiver of the changes of [`ApiKeys::are_ready`].
    pub fn changes(&self) -> watch::Receiver<()> {
        self.keyring.changes()
    }

    /// Returns the project of a call; `None` if it takes no keys.
    ///
    /// # Errors
    ///
    /// [`ApiKeyRefusal`].
    pub(super) fn tenant<B>(
        &self,
        request: &Request<B>,
        permission: Permission,
    ) -> Result<Option<Tenant>, ApiKeyRefusal> {
        if !self.are_on() || permission == Permission::Descriptors {
            return Ok(None);
        }
        let mut tenant = Tenant(None);
        for text in self.in_headers(request) {
            tenant = self.joined(&tenant, text)?;
        }
        let must_show = self.settings.mode == ApiKeyMode::Required;
        if tenant.0.is_none() && must_show && permission == Permission::Decisions {
            return Err(ApiKeyRefusal::Missing);
        }
        Ok(Some(tenant))
    }

    /// Returns the texts in the headers of a request that are read as API keys.
    fn in_headers<'r, B>(&self, request: &'r Request<B>) -> impl Iterator<Item = &'r str> {
        let mode = self.settings.mode;
        // Other bytes than those of ASCII are in no key.
        let texts = request.headers().get_all(API_KEY_HEADER).into_iter();
        let texts = texts.map(|text| text.to_str().unwrap_or_default());
        texts.filter(move |text| match mode {
            ApiKeyMode::Off => false,
            ApiKeyMode::AcceptedByDefault => ApiKeyText::has_prefix(text),
            ApiKeyMode::Accepted | ApiKeyMode::Required => true,
        })
    }

    /// Returns `true` if the headers of a request have an API key that is read.
    pub(super) fn are_in_headers<B>(&self, request: &Request<B>) -> bool {
        self.in_headers(request).next().is_some()
    }

    /// Returns the warning for a call that shows something as its API key that is not checked, and
    /// logs the first one.
    pub fn warning<B>(&self, request: &Request<B>) -> Option<&'static str> {
        if !request.headers().contains_key(API_KEY_HEADER) || self.are_in_headers(request) {
            return None;
        }
        Some(self.unchecked_warning())
    }

    /// Returns the warning for a call whose body has an API key, while none is checked.
    pub fn unchecked_warning(&self) -> &'static str {
        let warning = if self.are_on() { FOREIGN_KEY } else { KEYS_OFF };
        self.is_logged.get_or_init(|| warn!(warning, "API key not checked; not logged again"));
        warning
    }

    /// Returns the project of a call of `tenant` that also shows this key.
    pub(super) fn joined(&self, tenant: &Tenant, text: &str) -> Result<Tenant, ApiKeyRefusal> {
        self.clock.follow_wall_time();
        let now = self.clock.now();
        let holder = self.keyring.find(text, now)?;
        let is_too_old = |max_age| self.keyring.age().is_none_or(|age| age > max_age);
        if self.settings.max_age.is_some_and(is_too_old) {
            return Err(KeyRefusal::Unavailable.into());
        }
        match &tenant.0 {
            Some(other) if other.project != holder.project => Err(ApiKeyRefusal::Disagree),
            Some(other) => Ok(Tenant(Some(Arc::clone(other)))),
            None => Ok(Tenant(Some(holder))),
        }
    }
}

impl Tenant {
    /// Returns that of a request; `None` while API keys are off.
    pub fn from_extensions(extensions: &Extensions) -> Option<&Self> {
        extensions.get()
    }

    /// Returns the project of the key that the call shows.
    pub(super) fn key_project(&self) -> Option<&ProjectId> {
        self.0.as_ref().map(|holder| &holder.project)
    }

    /// Returns the id of the project; empty if the call shows no key.
    pub fn project(&self) -> &str {
        self.0.as_ref().map_or("", |holder| holder.project.as_str())
    }

    /// Returns the limiter that decides requests of the call: it counts those with an API key as requests
    /// with that key, too.
    pub fn limiter<'l>(tenant: Option<&Self>, limiter: &'l Limiter) -> Cow<'l, Limiter> {
        let holder = tenant.and_then(|tenant| tenant.0.as_ref());
        holder.map_or(Cow::Borrowed(limiter), |holder| {
            Cow::Owned(limiter.observed_by(Arc::clone(holder.requests()) as _))
        })
    }

    /// Sets the attributes of the API key of a call, if it shows one: those of the key, and `api_key`, the id of the
    /// first key of its line. Callers can't set them; without `tenant`, keys are ignored, and `api_key` is an attribute
    /// like others.
    pub fn set_attributes(tenant: Option<&Self>, attributes: &mut HashMap<String, String>) {
        attributes.retain(|name, _| !Attributes::is_of_key(name));
        let Some(Self(holder)) = tenant else { return };
        match holder {
            Some(holder) => {
                attributes.insert(ATTRIBUTE.to_owned(), holder.line.clone());
                attributes.extend(holder.attributes.iter().cloned());
            }
            None => {
                attributes.remove(ATTRIBUTE);
            }
        }
    }
}

/// Puts an API key of a body into the headers.
pub(super) fn put_in_headers<B>(request: &mut Request<B>, text: &str) -> Result<(), ApiKeyRefusal> {
    let form = KeyRefusal::Malformed(MalformedApiKey::Form);
    let mut value = HeaderValue::from_str(text).map_err(|_| form)?;
    value.set_sensitive(true);
    request.headers_mut().insert(API_KEY_HEADER, value);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_caller_sets_the_attributes_of_keys() {
        let holder = KeyHolder {
            project: "shop".parse().expect("an id"),
            line: "line".to_owned(),
            attributes: vec![("key.plan".to_owned(), "pro".to_owned())],
            requests: Arc::default(),
        };
        let of_key = Tenant(Some(Arc::new(holder)));
        for (tenant, expected) in [
            (None, vec![("api_key", "sent"), ("plan", "sent")]),
            (Some(&Tenant(None)), vec![("plan", "sent")]),
            (Some(&of_key), vec![("api_key", "line"), ("key.plan", "pro"), ("plan", "sent")]),
        ] {
            let sent = ["key.plan", "key.", "api_key", "plan"];
            let mut attributes: HashMap<String, String> =
                sent.map(|name| (name.to_owned(), "sent".to_owned())).into();
            Tenant::set_attributes(tenant, &mut attributes);
            let mut left: Vec<_> =
                attributes.iter().map(|(name, value)| (&**name, &**value)).collect();
            left.sort_unstable();
            assert_eq!(left, expected);
        }
    }
}
