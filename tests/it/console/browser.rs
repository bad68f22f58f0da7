//! A browser, as far as security matters: it keeps cookies, and names the origin of forms.

use rlaas_testkit::process::Rlaas;

use super::address;
use crate::http::client::{HttpResponse, exchange};

/// A browser with its cookies.
#[derive(Clone, Debug)]
pub(super) struct Browser {
    pub(super) address: String,
    pub(super) cookie: Option<String>,
}

impl Browser {
    pub(super) fn new(server: &Rlaas) -> Self {
        Self { address: address(server), cookie: None }
    }

    /// Returns a browser that has signed in with a token.
    pub(super) async fn signed_in(server: &Rlaas, token: &str) -> Self {
        let mut browser = Self::new(server);
        let response = browser.sign_in(token).await;
        assert_eq!(response.status, 303, "{response:?}");
        browser
    }

    /// Sends the form for signing in, and keeps the cookie.
    pub(super) async fn sign_in(&mut self, token: &str) -> HttpResponse {
        let response = self.post("sign-in", &format!("by=token&token={token}")).await;
        if let Some(cookie) = response.header("set-cookie") {
            self.cookie = cookie.split(';').next().map(str::to_owned);
        }
        response
    }

    /// Returns the secret that forms of this browser's pages have.
    pub(super) async fn secret(&self, page: &str) -> String {
        let response = self.get(page).await;
        secret_of(&response.body).unwrap_or_else(|| panic!("no form: {response:?}"))
    }

    pub(super) async fn get(&self, page: &str) -> HttpResponse {
        self.send("GET", page, "", "").await
    }

    /// Sends a form of one of the console's pages.
    pub(super) async fn post(&self, page: &str, body: &str) -> HttpResponse {
        let origin = format!("Origin: http://{}\r\n", self.address);
        self.post_with(page, &origin, body).await
    }

    /// Sends a form with these headers, each with its line end.
    pub(super) async fn post_with(&self, page: &str, headers: &str, body: &str) -> HttpResponse {
        let form = "Content-Type: application/x-www-form-urlencoded\r\n";
        self.send("POST", page, &format!("{form}{headers}"), body).await
    }

    /// Sends a request for a page of the console.
    pub(super) async fn send(
        &self,
        method: &str,
        page: &str,
        headers: &str,
        body: &str,
    ) -> HttpResponse {
        let request = self.request(method, page, headers, body);
        exchange(&self.address, request.as_bytes()).await
    }

    pub(super) fn request(&self, method: &str, page: &str, headers: &str, body: &str) -> String {
        let cookie = self.cookie.as_ref().map(|cookie| format!("Cookie: {cookie}\r\n"));
        let has_host = headers.to_ascii_lowercase().contains("host: ");
        let host = if has_host { String::new() } else { format!("Host: {}\r\n", self.address) };
        format!(
            "{method} /console/{page} HTTP/1.1\r\n{host}Connection: close\r\n{headers}{}\
             Content-Length: {}\r\n\r\n{body}",
            cookie.unwrap_or_default(),
            body.len()
        )
    }
}

/// Returns the secret of the first form in a page.
pub(super) fn secret_of(html: &str) -> Option<String> {
    let value = html.split("name=\"secret\" value=\"").nth(1)?;
    value.split('"').next().map(str::to_owned)
}
