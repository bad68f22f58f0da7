//! The page for signing in. What its forms do is up to the service.

use maud::{Markup, html};

use super::fields::Link;
use super::layout::bare;
use super::pages::page_of;
use super::text::foreign;

/// The texts of the page, beside its form.
#[derive(Debug, Default)]
pub struct SignInPage {
    /// The page that the sign-in leads to.
    pub next: String,
    /// Whether the visitor's browser has shown a certificate.
    pub has_certificate: bool,
    /// The issuer, if visitors can sign in there.
    pub issuer: Option<String>,
    /// Why nobody is signed in.
    pub problem: Option<String>,
}

impl SignInPage {
    /// Returns the page.
    pub fn render(&self) -> Markup {
        let next = page_of(&self.next);
        bare(
            "Sign in",
            &html! {
                @if let Some(problem) = &self.problem {
                    p.problem role="alert" { (foreign(problem)) }
                }
                @if let Some(issuer) = &self.issuer {
                    div.stack {
                        a.button.primary href=(Link::to("oidc-sign-in").with("next", next)) {
                            "Sign in with " (foreign(issuer))
                        }
                    }
                    p.or { span { "or" } }
                }
                form.stack method="post" action="sign-in" {
                    input type="hidden" name="next" value=(next);
                    label for="token" { "Token" }
                    input #token type="password" name="token" required autocomplete="current-password"
                        spellcheck="false" autofocus[self.issuer.is_none()];
                    p.hint { "A token that " code { "auth.tokens" } " lists, or one of your issuer." }
                    button.primary[self.issuer.is_none()] name="by" value="token" { "Sign in with a token" }
                }
                @if self.has_certificate {
                    form.stack method="post" action="sign-in" {
                        input type="hidden" name="next" value=(next);
                        button name="by" value="certificate" { "Sign in with your certificate" }
                    }
                }
            },
        )
    }
}
