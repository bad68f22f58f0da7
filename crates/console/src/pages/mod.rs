//! The pages: each gathers what it shows by calls of the service, and renders it.

pub(super) mod audit;
pub(super) mod change;
pub(super) mod exceptions;
pub(super) mod history;
pub(super) mod instances;
pub(super) mod key;
pub(super) mod now;
pub(super) mod project;
pub(super) mod projects;
pub(super) mod rule;
pub(super) mod rules;
pub(super) mod search;
mod undo;

/// The first page.
pub const HOME: &str = "now";
/// Every page that a sign-in may lead to, with its name in the navigation; empty for those that other
/// pages lead to.
pub(super) const ALL: [(&str, &str); 11] = [
    (HOME, "Now"),
    ("instances", "Instances"),
    ("rules", "Rules"),
    ("rule", ""),
    ("key", "Look up"),
    ("exceptions", "Exceptions"),
    ("projects", "Projects"),
    ("project", ""),
    ("change", ""),
    ("history", ""),
    ("audit", "Audit"),
];
/// Longest path and query that a sign-in leads back to.
const MAX_NEXT: usize = 8 * 1024;

/// Returns the page that a sign-in leads to: one of the console, or the first.
pub fn page_of(next: &str) -> &str {
    let page = next.split('?').next().unwrap_or_default();
    let is_page = ALL.iter().any(|(known, _)| *known == page) && next.len() <= MAX_NEXT;
    if is_page && next.bytes().all(|byte| byte.is_ascii_graphic()) { next } else { HOME }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sign_in_leads_to_pages_of_the_console_only() {
        for next in ["instances", "instances?a=b%20c"] {
            assert_eq!(page_of(next), next);
        }
        for next in [
            "",
            "//evil.example",
            "https://evil.example/",
            "/\\evil.example",
            "instances/../..",
            "instances\r\nSet-Cookie: a=b",
            "instances?\u{202e}",
            "javascript:alert(1)",
            "sign-out",
            &format!("instances?{}", "a".repeat(MAX_NEXT)),
        ] {
            assert_eq!(page_of(next), HOME, "{next}");
        }
    }
}
