//! Signing in at the issuer (OpenID Connect).
//!
//! A sign-in that has begun lies in a sealed cookie of its browser and nowhere else: those who begin and
//! never end take no session and no memory. Those that exchanged a code are remembered, since each
//! exchanges one alone: a cookie can be shown again.

use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use rlaas_auth::{AuthError, CodeFlow, CodeFlowError, CodeRequest, refusal};
use rlaas_console::{FormFields, HOME, SignInPage, moved_to, page_of};
use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq;
use tracing::debug;

use super::seal::{Seal, SealPurpose};
use super::sessions::random_text;
use super::sign_in::{open, page, respond};
use super::{Context, cookies, origin_of};
use crate::clock::Micros;

/// Longest time from the beginning of a sign-in to its end.
const MAX_AGE: Micros = Micros::from_secs(10 * 60);
/// Longest page that a sign-in leads back to, in bytes: with it the cookie has less than 4 KiB.
const MAX_NEXT: usize = 1024;

/// A sign-in that has begun.
#[derive(Serialize, Deserialize)]
struct BegunSignIn {
    state: String,
    nonce: String,
    verifier: String,
    /// The page that it leads to.
    next: String,
}

impl BegunSignIn {
    /// Begins a sign-in. `None` without random numbers.
    fn new(next: &str) -> Option<Self> {
        let next = if next.len() <= MAX_NEXT { page_of(next) } else { HOME };
        let random = || random_text().ok();
        let (state, nonce, verifier) = (random()?, random()?, random()?);
        Some(Self { state, nonce, verifier, next: next.to_owned() })
    }

    fn request(&self) -> CodeRequest<'_> {
        CodeRequest { state: &self.state, nonce: &self.nonce, verifier: &self.verifier }
    }

    fn sealed(&self, seal: &Seal, issuer: &str) -> Option<String> {
        seal.seal(purpose(issuer), &serde_json::to_string(self).ok()?)
    }

    /// Returns the sign-in with this state that a browser has begun at the issuer.
    fn of_browser(headers: &HeaderMap, seal: &Seal, issuer: &str, state: &str) -> Option<Self> {
        let begun = cookies::begun_sign_ins(headers).filter_map(|sealed| {
            let text = seal.open(purpose(issuer), sealed)?;
            serde_json::from_str::<Self>(&text).ok()
        });
        let mut of_state = begun.filter(|begun| {
            !begun.state.is_empty() && bool::from(begun.state.as_bytes().ct_eq(state.as_bytes()))
        });
        of_state.next()
    }
}

/// A sign-in that began at one issuer does not end at another.
fn purpose(issuer: &str) -> SealPurpose<'_> {
    SealPurpose { name: "oidc-sign-in", owner: issuer, max_age: MAX_AGE }
}

/// Sends the browser to the issuer.
pub(super) async fn begin(State(context): State<Context>, request: Request) -> Response {
    let (parts, _body) = request.into_parts();
    let request = Request::from_parts(parts, ());
    let Some(flow) = context.auth.code_flow() else { return moved_to("sign-in") };
    let query = request.uri().query().unwrap_or_default();
    let fields = FormFields::parse(query.as_bytes()).unwrap_or_default();
    let next = fields.one("next").unwrap_or_default();
    let begun = BegunSignIn::new(next);
    let sealed =
        begun.as_ref().and_then(|begun| begun.sealed(context.sessions.seal(), flow.issuer()));
    let (Some(begun), Some(sealed)) = (begun, sealed) else {
        return failed(&context, &request, SignInFailure::NoRandomNumbers, next).await;
    };
    match flow.authorization_url(begun.request()) {
        Ok(url) => {
            let cookie = cookies::set_begun(&sealed, request.headers(), origin_of(&request));
            ([(header::SET_COOKIE, cookie)], moved_to(&url)).into_response()
        }
        Err(error) => failed(&context, &request, error.into(), next).await,
    }
}

/// Takes the response of the issuer, which a browser brings, and opens a session.
pub(super) async fn end(State(context): State<Context>, request: Request) -> Response {
    let (parts, _body) = request.into_parts();
    let request = Request::from_parts(parts, ());
    let Some(flow) = context.auth.code_flow() else { return moved_to("sign-in") };
    let query = request.uri().query().unwrap_or_default();
    let fields = FormFields::parse(query.as_bytes()).unwrap_or_default();
    let state = fields.one("state").unwrap_or_default();
    let seal = context.sessions.seal();
    let begun = BegunSignIn::of_browser(request.headers(), seal, flow.issuer(), state);
    let Some(begun) = begun else {
        return failed(&context, &request, SignInFailure::NotBegun, "").await;
    };
    let signed_in = match token(&context, &flow, &fields, &begun).await {
        Ok(token) => {
            let by = context.auth.sign_in_with_id_token(&request, &token, &begun.nonce).await;
            by.map_err(SignInFailure::Auth)
        }
        Err(failure) => Err(failure),
    };
    let mut response = match signed_in {
        Ok((caller, credential)) => open(&context, &request, caller, credential, &begun.next).await,
        Err(failure) => failed(&context, &request, failure, &begun.next).await,
    };
    let cookie = cookies::remove_begun(request.headers(), origin_of(&request));
    response.headers_mut().append(header::SET_COOKIE, cookie);
    response
}

/// Returns the ID token for the code that a browser brings.
async fn token(
    context: &Context,
    flow: &CodeFlow,
    fields: &FormFields,
    begun: &BegunSignIn,
) -> Result<Vec<u8>, SignInFailure> {
    let field = |name| fields.one(name).map_err(|_| SignInFailure::Response);
    let (issuer, error, code) = (field("iss")?, field("error")?, field("code")?);
    // Source: RFC 9207 section 2.4. Issuers that do not send it name their tokens, which are checked.
    if !issuer.is_empty() && issuer != flow.issuer() {
        return Err(SignInFailure::Response);
    }
    if !error.is_empty() {
        let text = refusal(error, field("error_description")?);
        return Err(CodeFlowError::Refused(text).into());
    }
    if code.is_empty() {
        return Err(SignInFailure::Response);
    }
    if !context.sessions.used_sign_ins().use_up(&begun.state) {
        return Err(SignInFailure::Used);
    }
    let (flow, code) = (flow.clone(), code.to_owned());
    let (state, nonce, verifier) =
        (begun.state.clone(), begun.nonce.clone(), begun.verifier.clone());
    // Not on a worker that decides: it may be a handshake of TLS.
    let redeemed = context.outbound.spawn(async move {
        let request = CodeRequest { state: &state, nonce: &nonce, verifier: &verifier };
        flow.redeem(&code, request).await
    });
    Ok(redeemed.await.map_err(|_ended| CodeFlowError::Unavailable)??)
}

/// The reason why nobody is signed in.
#[derive(Debug)]
enum SignInFailure {
    NoRandomNumbers,
    /// This browser has begun no such sign-in, or long ago.
    NotBegun,
    /// It has exchanged a code already.
    Used,
    /// The issuer's response has no code, or is of another issuer.
    Response,
    Flow(CodeFlowError),
    Auth(AuthError),
}

impl From<CodeFlowError> for SignInFailure {
    fn from(error: CodeFlowError) -> Self {
        Self::Flow(error)
    }
}

impl SignInFailure {
    fn status(&self) -> StatusCode {
        match self {
            Self::NoRandomNumbers => StatusCode::INTERNAL_SERVER_ERROR,
            Self::NotBegun | Self::Used | Self::Response => StatusCode::BAD_REQUEST,
            Self::Flow(CodeFlowError::Refused(_)) => StatusCode::FORBIDDEN,
            Self::Flow(_) => StatusCode::SERVICE_UNAVAILABLE,
            Self::Auth(error) => super::sign_in::status(*error),
        }
    }

    fn text(&self) -> String {
        match self {
            Self::NoRandomNumbers => "Not signed in: the system has no random numbers.".to_owned(),
            Self::NotBegun => {
                "Not signed in: this browser has not begun it in the last 10 minutes, or \
                               has begun another one since. Sign in again."
                    .to_owned()
            }
            Self::Used => "Not signed in: this sign-in has ended. Sign in again.".to_owned(),
            Self::Response => "Not signed in: the response is not of the issuer.".to_owned(),
            Self::Flow(error) => format!("Not signed in: {error}. Try again, or use a token."),
            Self::Auth(error) => super::sign_in::problem(*error),
        }
    }
}

async fn failed(
    context: &Context,
    request: &Request<()>,
    failure: SignInFailure,
    next: &str,
) -> Response {
    debug!(?failure, "sign-in at the OIDC issuer failed");
    let page = SignInPage { problem: Some(failure.text()), ..page(context, request, next) };
    respond(context, failure.status(), page).await
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;
    use crate::clock::{Clock, ManualClock, Timestamp};

    const ISSUER: &str = "https://id.example";

    fn cookie(sealed: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        let set = cookies::set_begun(sealed, &headers, origin_of(&Request::new(())));
        let pair = set.to_str().expect("text").split(';').next().expect("a pair").to_owned();
        headers.insert(header::COOKIE, HeaderValue::try_from(pair).expect("a header"));
        headers
    }

    #[test]
    fn a_sign_in_ends_in_its_browser_within_ten_minutes() {
        let clock = ManualClock::new(Timestamp::EPOCH + MAX_AGE);
        let seal = Seal::new(Clock::Manual(clock.clone()));
        let begun = BegunSignIn::new("instances?a=b").expect("random numbers");
        let headers = cookie(&begun.sealed(&seal, ISSUER).expect("random numbers"));
        let found = |headers: &HeaderMap, issuer: &str, state: &str| {
            BegunSignIn::of_browser(headers, &seal, issuer, state).map(|begun| begun.next)
        };
        assert_eq!(found(&headers, ISSUER, &begun.state).as_deref(), Some("instances?a=b"));
        assert_eq!(found(&headers, ISSUER, ""), None);
        assert_eq!(found(&headers, ISSUER, &begun.nonce), None, "another state");
        assert_eq!(found(&headers, "https://evil.example", &begun.state), None);
        assert_eq!(found(&HeaderMap::new(), ISSUER, &begun.state), None, "another browser");
        assert_eq!(found(&cookie("forged"), ISSUER, &begun.state), None);
        clock.set(clock.now() + MAX_AGE);
        assert!(found(&headers, ISSUER, &begun.state).is_some());
        clock.set(clock.now() + Micros::from_micros(1));
        assert_eq!(found(&headers, ISSUER, &begun.state), None, "too late");
    }

    #[test]
    fn the_cookie_has_less_than_4_kib_and_leads_to_a_page() {
        let seal = Seal::new(Clock::default());
        let longest = format!("now?{}", "a".repeat(MAX_NEXT - 4));
        for (next, leads_to) in [
            (&*longest, &*longest),
            (&*format!("{longest}a"), HOME),
            ("https://evil.example", HOME),
        ] {
            let begun = BegunSignIn::new(next).expect("random numbers");
            assert_eq!(begun.next, leads_to);
            let sealed = begun.sealed(&seal, &"i".repeat(200)).expect("random numbers");
            assert!(sealed.len() < 3_500, "{}", sealed.len());
        }
    }
}
