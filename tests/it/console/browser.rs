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

/// Returns a text as a form has it.
pub(super) fn encoded(text: &str) -> String {
    text.bytes().fold(String::new(), |all, byte| format!("{all}%{byte:02X}"))
}

/// Returns the hidden fields of the form of a page that has a button or an option with this value.
pub(super) fn form(page: &str, value: &str) -> String {
    form_with(page, &format!("value=\"{value}\""))
}

/// Returns the hidden fields of the first form of a page that contains a text.
pub(super) fn form_with(page: &str, text: &str) -> String {
    let form = page.split("<form").find(|form| form.contains(text));
    let form = form.unwrap_or_else(|| panic!("no form with {text}: {page}"));
    let hidden = form.split("<input type=\"hidden\" name=\"").skip(1).map(|input| {
        let (name, rest) = input.split_once('"').expect("a name");
        let value = rest.split("value=\"").nth(1).and_then(|rest| rest.split('"').next());
        let value = value.expect("a value").replace("&amp;", "&");
        format!("{name}={}", encoded(&value))
    });
    hidden.collect::<Vec<_>>().join("&")
}

/// Returns the numbers of the first row of a table whose name contains a text.
pub(super) fn row(html: &str, head: &str) -> Option<Vec<String>> {
    let is_row = |row: &&str| {
        let rest = row.strip_prefix("<th scope=\"row\"");
        rest.and_then(|rest| rest.split_inclusive("</th>").next())
            .is_some_and(|name| name.contains(head))
    };
    let rows = html.split("<tr>").filter_map(|row| row.split("</tr>").next());
    let row = rows.into_iter().find(is_row)?;
    let cells = row.split("<td class=\"right\"").skip(1);
    let text = |cell: &str| {
        let cell = cell.split("</td>").next().unwrap_or_default().split("<svg").next();
        let parts = cell.unwrap_or_default().split('<').map(|part| part.split('>').next_back());
        parts.map(Option::unwrap_or_default).collect::<String>()
    };
    Some(cells.map(text).collect())
}
