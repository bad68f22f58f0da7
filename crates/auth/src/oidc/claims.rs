//! Claims of tokens: those that every token must have, and the one with the roles.
//!
//! A claim that is missing or of another type grants nothing.
//!
//! **Source:** RFC 7519 section 4.1.

use std::time::Duration;

use rlaas_core::clock::{Micros, Timestamp};
use serde::Deserialize;
use serde::de::{Deserializer, Error as _};
use serde_json::Value;

use super::super::grants::Grants;
use super::super::roles::{Role, Roles};
use super::TokenError;
use super::settings::OidcSettings;
use crate::ProjectId;

/// Time by which the clock of the issuer may be ahead, for `nbf` and `iat`.
pub(super) const MAX_CLOCK_SKEW: Micros = Micros::from_secs(60);

/// Maximum length of the name of a caller, in bytes: the audit keeps as many.
const MAX_ACTOR: usize = 256;
/// Every project, in the claim with projects.
const ALL_PROJECTS: &str = "*";

/// The claims that are checked before the signature is. A name that is given twice is an error.
#[derive(Debug, Deserialize)]
pub(super) struct RegisteredClaims {
    iss: String,
    sub: String,
    aud: AudienceClaim,
    exp: NumericDate,
    nbf: Option<NumericDate>,
    iat: Option<NumericDate>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum AudienceClaim {
    One(String),
    Several(Vec<String>),
}

/// A time in seconds since the Unix epoch, which may have a fraction.
#[derive(Clone, Copy, Debug)]
struct NumericDate(Timestamp);

impl<'de> Deserialize<'de> for NumericDate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let seconds = f64::deserialize(deserializer)?;
        if seconds < 0.0 {
            return Ok(Self(Timestamp::EPOCH));
        }
        let since_epoch = Duration::try_from_secs_f64(seconds).map_err(D::Error::custom)?;
        Ok(Self(Timestamp::EPOCH + Micros::from(since_epoch)))
    }
}

impl RegisteredClaims {
    /// Parses the claims of a token.
    ///
    /// # Errors
    ///
    /// [`TokenError::Claims`].
    pub(super) fn from_json(payload: &[u8]) -> Result<Self, TokenError> {
        serde_json::from_slice(payload).map_err(|_| TokenError::Claims)
    }

    /// Checks who issued the token, for which audiences, and when. Returns the name of its caller.
    ///
    /// # Errors
    ///
    /// A [`TokenError`]: the first requirement that is not met.
    pub(super) fn check(
        &self,
        settings: &OidcSettings,
        audiences: &[String],
        now: Timestamp,
    ) -> Result<String, TokenError> {
        let is_later = |date: Option<NumericDate>| {
            date.is_some_and(|NumericDate(date)| date > now + MAX_CLOCK_SKEW)
        };
        if self.iss != settings.issuer.name() {
            return Err(TokenError::Issuer);
        }
        if !self.audiences().iter().any(|audience| audiences.contains(audience)) {
            return Err(TokenError::Audience);
        }
        if self.expires() <= now {
            return Err(TokenError::Expired);
        }
        if is_later(self.nbf) || is_later(self.iat) {
            return Err(TokenError::NotYetValid);
        }
        let actor = self.actor();
        let is_named = !self.sub.is_empty() && actor.len() <= MAX_ACTOR;
        if is_named { Ok(actor) } else { Err(TokenError::Claims) }
    }

    /// Returns the name of the caller: `oidc:ISSUER#SUBJECT`. No issuer contains a `#`.
    fn actor(&self) -> String {
        format!("oidc:{}#{}", self.iss, self.sub)
    }

    /// Returns the end of the token.
    pub(super) fn expires(&self) -> Timestamp {
        self.exp.0
    }

    fn audiences(&self) -> &[String] {
        match &self.aud {
            AudienceClaim::One(audience) => std::slice::from_ref(audience),
            AudienceClaim::Several(audiences) => audiences,
        }
    }
}

/// The place of a claim: its name, after those of the objects that contain it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimPath(Vec<String>);

/// The claim `roles`.
impl Default for ClaimPath {
    fn default() -> Self {
        Self(vec!["roles".to_owned()])
    }
}

impl ClaimPath {
    /// Maximum number of names.
    pub const MAX: usize = 8;

    /// Creates the path of these names, the outermost first. `None` unless there are 1 to
    /// [`Self::MAX`] names, none of them empty.
    pub fn new(names: Vec<String>) -> Option<Self> {
        let is_valid =
            (1..=Self::MAX).contains(&names.len()) && !names.iter().any(String::is_empty);
        is_valid.then_some(Self(names))
    }

    /// Returns the roles that the claim names. Other names are ignored; anything but a list of
    /// strings grants nothing.
    pub(super) fn roles(&self, claims: &Value) -> Roles {
        let names = self.texts(claims);
        Role::ALL.into_iter().filter(|role| names.contains(&role.name())).collect()
    }

    /// Returns the roles for the projects that the claim names, of which `*` is every project.
    /// Texts that are no id are ignored; anything but a list of strings grants nothing.
    pub(super) fn limit(&self, roles: Roles, claims: &Value) -> Grants {
        let names = self.texts(claims);
        if names.contains(&ALL_PROJECTS) {
            return roles.into();
        }
        let ids = names.iter().filter_map(|name| name.parse::<ProjectId>().ok());
        Grants::within(ids.take(Grants::MAX_PROJECTS), roles)
    }

    /// Returns the texts of the claim, none unless it is a list of strings.
    fn texts<'a>(&self, claims: &'a Value) -> Vec<&'a str> {
        let found = self.0.iter().try_fold(claims, |object, name| object.as_object()?.get(name));
        let texts = found.and_then(Value::as_array);
        let texts = texts.and_then(|texts| texts.iter().map(Value::as_str).collect());
        texts.unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn path(names: &[&str]) -> ClaimPath {
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        ClaimPath::new(names).expect("a path")
    }

    #[test]
    fn roles_are_those_of_a_list_of_strings() {
        let claims = json!({
            "roles": ["check", "Admin", "root", "operate", "check"],
            "realm_access": { "roles": ["admin"] },
            "https://a.example/roles": ["operate"],
            "realm_access.roles": ["operate"],
            "empty": [],
        });
        for (names, expected) in [
            (&["roles"][..], &[Role::Check, Role::Operate][..]),
            (&["realm_access", "roles"], &[Role::Admin]),
            (&["https://a.example/roles"], &[Role::Operate]),
            (&["realm_access.roles"], &[Role::Operate]),
            (&["empty"], &[]),
            (&["missing"], &[]),
            (&["realm_access", "missing"], &[]),
            (&["roles", "roles"], &[]),
            (&["realm_access"], &[]),
        ] {
            let expected: Roles = expected.iter().copied().collect();
            assert_eq!(path(names).roles(&claims), expected, "{names:?}");
        }
    }

    #[test]
    fn claim_of_another_type_grants_nothing() {
        for roles in [
            json!("admin"),
            json!("check operate admin"),
            json!(["admin", 1]),
            json!([["admin"]]),
            json!({ "admin": true }),
            json!({ "0": "admin" }),
            json!(7),
            json!(true),
            json!(null),
        ] {
            let claims = json!({ "roles": roles });
            assert_eq!(path(&["roles"]).roles(&claims), Roles::default(), "{claims}");
        }
        assert_eq!(path(&["roles"]).roles(&json!(["admin"])), Roles::default());
    }

    #[test]
    fn projects_are_those_of_a_list_of_strings() {
        let admin = Roles::only(Role::Admin);
        let id = |text: &str| text.parse::<ProjectId>().expect("an id");
        for (projects, expected) in [
            (json!(["shop", "Shop", "_", "", 7]), Grants::default()),
            (
                json!(["shop", "Shop", "_", "", "blog"]),
                Grants::within([id("shop"), id("blog")], admin),
            ),
            (json!(["shop", "*"]), admin.into()),
            (json!("*"), Grants::default()),
            (json!([]), Grants::default()),
            (json!(null), Grants::default()),
        ] {
            let claims = json!({ "projects": projects });
            assert_eq!(path(&["projects"]).limit(admin, &claims), expected, "{claims}");
        }
        assert_eq!(path(&["projects"]).limit(admin, &json!({})), Grants::default());
    }

    #[test]
    fn required_claims_have_their_types_and_are_given_once() {
        let valid = json!({ "iss": "i", "sub": "s", "aud": ["a"], "exp": 1.5, "nbf": -1 });
        let parse = |claims: &str| RegisteredClaims::from_json(claims.as_bytes()).map(|_| ());
        assert_eq!(parse(&valid.to_string()), Ok(()));
        for name in ["iss", "sub", "aud", "exp"] {
            let mut without = valid.clone();
            without.as_object_mut().expect("an object").remove(name);
            assert_eq!(parse(&without.to_string()), Err(TokenError::Claims), "{name}");
        }
        for (name, value) in [
            ("iss", json!(["i"])),
            ("sub", json!(1)),
            ("aud", json!(1)),
            ("aud", json!(["a", 1])),
            ("exp", json!("1")),
            ("exp", json!(1e300)),
            ("exp", json!(null)),
            ("nbf", json!("1")),
            ("iat", json!({})),
        ] {
            let mut with = valid.clone();
            with[name] = value;
            assert_eq!(parse(&with.to_string()), Err(TokenError::Claims), "{with}");
        }
        let twice = r#"{"iss":"i","sub":"s","aud":"a","exp":1,"exp":9}"#;
        for other in [twice, "", "[]", "null", "{", r#"{"iss":"i"}{}"#] {
            assert_eq!(parse(other), Err(TokenError::Claims), "{other}");
        }
    }
}
