//! The frame of every page: head, navigation, notices, foot.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::assets::{ICON, LIVE, SCRIPT, STYLES};
use super::fields::Link;
use super::pages::{page_of, search};
use super::text::{foreign, visible};
use super::visit::Visitor;

/// The field with the secret of the visitor's forms.
pub const SECRET_FIELD: &str = "secret";

/// The frame of a page for its visitor.
#[derive(Clone, Debug)]
pub(super) struct Frame {
    /// The page, as in its path.
    pub(super) page: &'static str,
    pub(super) visitor: Visitor,
    /// The outcome of the change that led to this page.
    pub(super) outcome: Option<String>,
}

impl Frame {
    /// Returns a page.
    pub(super) fn page(&self, title: &str, content: &Markup) -> Markup {
        let body = html! {
            header.top {
                a.brand href="." { (mark()) "rlaas" }
                (cluster_badge(self.cluster()))
                nav aria-label="Pages" { ul { (self.links()) } }
                (self.search())
                div.visitor {
                    span {
                        @if self.visitor.has_session { "Signed in as " } @else { "Not signed in: " }
                        (foreign(&self.visitor.actor))
                    }
                    @if self.visitor.has_session {
                        form method="post" action="sign-out" {
                            (self.secret())
                            button { "Sign out" }
                        }
                    }
                }
            }
            main #content tabindex="-1" {
                h1 { (title) }
                @if self.visitor.store.is_away { (self.store_problem()) }
                @if self.visitor.store.has_conflict { (self.conflict()) }
                @if let Some(outcome) = &self.outcome {
                    p.done role="status" { (foreign(outcome)) }
                }
                (content)
            }
            footer {
                @if self.visitor.sees_instances() { "Instance " (foreign(&self.visitor.store.instance)) " · " }
                "rlaas " (env!("CARGO_PKG_VERSION"))
                @if self.visitor.sees_instances() {
                    " · store " (self.visitor.store.kind)
                    @if self.visitor.store.kind == "memory" {
                        " (counts are those of this instance only)"
                    }
                }
            }
        };
        document(title, self.cluster(), &body)
    }

    /// Shows the search of every page. It is sent as a form: an API key must not be in an address.
    fn search(&self) -> Markup {
        html! {
            form.find method="post" action="search" role="search" aria-label="Everything" {
                (self.secret())
                input #find type="search" name=(search::FIELD) aria-label="Search" aria-keyshortcuts="/"
                    placeholder="Id, API key, rule, project" autocomplete="off" spellcheck="false";
            }
        }
    }

    fn cluster(&self) -> &str {
        &self.visitor.store.cluster
    }

    /// Returns the hidden field that every form of the visitor has.
    pub(super) fn secret(&self) -> Markup {
        html! { input type="hidden" name=(SECRET_FIELD) value=(self.visitor.form_secret.masked()); }
    }

    /// Says what to expect while the store is away; to visitors of single projects no more than that.
    fn store_problem(&self) -> Markup {
        html! {
            p.problem role="status" {
                @if self.visitor.sees_instances() {
                    strong { "The store does not answer. " }
                    "Decisions follow the failure policies of their rules, changes are refused, \
                     and you see this instance only."
                } @else {
                    "For now decisions follow the failure policies of their rules, and changes are \
                     refused."
                }
            }
        }
    }

    fn conflict(&self) -> Markup {
        html! {
            p.problem role="status" {
                strong { "Projects and rules can't be changed. " }
                @if self.visitor.sees_instances() {
                    "The projects of the store are not those that an instance knows, as after a loss of its data. \
                     Decisions go on with those that are known. Run "
                    code { "rlaas project restore" } " to keep the ones or the others."
                } @else { "Decisions go on." }
            }
        }
    }

    fn links(&self) -> Markup {
        let admin = &self.visitor.admin;
        let has_audit = admin.everywhere || !admin.projects.is_empty();
        let shown = super::pages::ALL.into_iter().filter(|(page, name)| match *page {
            "instances" => self.visitor.sees_instances(),
            "audit" | "exceptions" => has_audit,
            _ => !name.is_empty(),
        });
        html! {
            @for (page, name) in shown {
                li { a href=(page) aria-current=[(page == self.page).then_some("page")] { (name) } }
            }
        }
    }
}

/// Returns a page for somebody who has not signed in. The name of the cluster may be empty.
fn bare(title: &str, cluster: &str, content: &Markup) -> Markup {
    let body = html! {
        main.narrow #content tabindex="-1" {
            p.brand { (mark()) "rlaas" (cluster_badge(cluster)) }
            h1 { (title) }
            (content)
        }
    };
    document(title, cluster, &body)
}

/// Returns a page that says one thing.
pub fn notice(title: &str, detail: &str) -> Markup {
    let back = html! {
        p { (detail) }
        p { a href="." { "To the first page" } }
    };
    bare(title, "", &back)
}

/// The texts of the page for signing in, beside its form. What that does is up to the service.
#[derive(Debug, Default)]
pub struct SignInPage {
    /// Name of the cluster; may be empty.
    pub cluster: String,
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
            &self.cluster,
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

/// Returns what a page shows in place of what could not be read or done.
pub(super) fn failure(problem: &str) -> Markup {
    html! {
        p.problem role="alert" { (foreign(problem)) }
    }
}

/// Returns what a page shows in place of a list that is empty.
pub(super) fn empty(content: &Markup) -> Markup {
    html! { div.empty { (mark()) p { (content) } } }
}

/// Returns the mark of the console, which is its icon.
fn mark() -> Markup {
    html! { span.mark aria-hidden="true" { (PreEscaped(include_str!("../assets/icon.svg"))) } }
}

/// Returns the name of the cluster, unless it is empty.
fn cluster_badge(cluster: &str) -> Markup {
    html! { @if !cluster.is_empty() { span.badge title="The cluster" { (foreign(cluster)) } } }
}

fn document(title: &str, cluster: &str, body: &Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                title { (title) @if !cluster.is_empty() { " · " (visible(cluster)) } " · rlaas" }
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta name="robots" content="noindex";
                link rel="icon" type="image/svg+xml" href=(ICON.path());
                link rel="stylesheet" href=(STYLES.path());
                script type="module" src=(SCRIPT.path()) {}
                script type="module" src=(LIVE.path()) {}
            }
            body {
                a.skip href="#content" { "Skip to content" }
                (body)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::visit::tests::visitor;
    use super::*;

    #[test]
    fn visitors_of_projects_see_neither_the_instance_nor_its_store() {
        let html = |sees_all| {
            let mut visitor = visitor();
            visitor.operate.everywhere = sees_all;
            let frame = Frame { page: "now", visitor, outcome: None };
            frame.page("Now", &html! {}).into_string()
        };
        let (all, own) = (html(true), html(false));
        let restore = "rlaas project restore";
        for text in
            ["host-1", "store redis", "The store does not answer", "this instance only", restore]
        {
            assert!(all.contains(text) && !own.contains(text), "{text}: {own}");
        }
        assert!(own.contains("changes are refused") && own.contains("Not signed in: "), "{own}");
    }

    #[test]
    fn the_name_of_the_cluster_is_in_the_head_and_in_the_title() {
        let page = |cluster: &str| {
            let mut visitor = visitor();
            cluster.clone_into(&mut visitor.store.cluster);
            let frame = Frame { page: "now", visitor, outcome: None };
            frame.page("Now", &html! {}).into_string()
        };
        let sign_in = |cluster: &str| {
            let page = SignInPage { cluster: cluster.to_owned(), ..SignInPage::default() };
            page.render().into_string()
        };
        let both = |cluster: &str| [("Now", page(cluster)), ("Sign in", sign_in(cluster))];
        for (title, named) in both("production") {
            let title = format!("<title>{title} · production · rlaas</title>");
            assert!(named.contains(&title), "{named}");
            assert!(named.contains("<bdi class=\"foreign\">production</bdi>"), "{named}");
        }
        for (title, unnamed) in both("") {
            let title = format!("<title>{title} · rlaas</title>");
            assert!(unnamed.contains(&title) && !unnamed.contains("badge"), "{unnamed}");
        }
        for (_, hostile) in both("<script>\u{202e}") {
            assert!(!hostile.contains("<script>") && !hostile.contains('\u{202e}'), "{hostile}");
        }
    }
}
