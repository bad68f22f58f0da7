//! The frame of a page: one HTML file that needs nothing else.

use std::fmt::Write;

use super::text::escaped;

/// A page.
#[derive(Clone, Debug)]
pub struct Page<'a> {
    /// Title, which is the heading too.
    pub title: &'a str,
    /// Sentence below the heading.
    pub subtitle: String,
    /// HTML below that, of this module's making.
    pub body: String,
    /// Sentence at the end.
    pub footer: String,
}

/// A number at a glance.
#[derive(Clone, Debug)]
pub struct Stat {
    /// What it is.
    pub name: String,
    /// The number.
    pub value: String,
    /// What it is to be compared with.
    pub remark: String,
}

impl Page<'_> {
    /// The style sheet of pages and charts.
    pub const STYLE: &'static str = include_str!("style.css");
    /// The policy that the page gives itself: nothing is loaded and no script runs.
    pub const POLICY: &'static str = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; \
                              base-uri 'none'; form-action 'none'";

    /// Returns the whole page.
    pub fn html(&self) -> String {
        let (title, subtitle) = (escaped(self.title), escaped(&self.subtitle));
        let (body, footer) = (&self.body, escaped(&self.footer));
        let (style, policy) = (Self::STYLE, Self::POLICY);
        format!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
             <meta http-equiv=\"Content-Security-Policy\" content=\"{policy}\"/>\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n\
             <meta name=\"color-scheme\" content=\"light dark\"/>\n\
             <meta name=\"referrer\" content=\"no-referrer\"/>\n\
             <link rel=\"icon\" href=\"data:,\"/>\n<title>{title}</title>\n\
             <style>\n{style}</style>\n</head>\n<body>\n<header><h1>{title}</h1>\n\
             <p>{subtitle}</p></header>\n<main>\n{body}</main>\n<footer><p>{footer}</p></footer>\n\
             </body>\n</html>\n"
        )
    }

    /// Returns numbers at a glance as HTML.
    pub fn stats(stats: &[Stat]) -> String {
        let mut html = String::from("<dl class=\"stats\">\n");
        for Stat { name, value, remark } in stats {
            let (name, value, remark) = (escaped(name), escaped(value), escaped(remark));
            let _infallible = writeln!(
                html,
                "<div><dt>{name}</dt><dd>{value}</dd><dd class=\"remark\">{remark}</dd></div>"
            );
        }
        html.push_str("</dl>\n");
        html
    }

    /// Returns sentences as a list in HTML; nothing if there are none.
    pub fn notes(notes: &[String]) -> String {
        if notes.is_empty() {
            return String::new();
        }
        let mut html = String::from("<ul class=\"notes\">\n");
        for note in notes {
            let _infallible = writeln!(html, "<li>{}</li>", escaped(note));
        }
        html.push_str("</ul>\n");
        html
    }

    /// Returns a section with a heading. `html` is of this module's making.
    pub fn section(heading: &str, html: &str) -> String {
        format!("<section>\n<h2>{}</h2>\n{html}</section>\n", escaped(heading))
    }

    /// Returns charts beside each other, as many as the screen is wide.
    pub fn charts(figures: &[String]) -> String {
        format!("<div class=\"charts\">\n{}</div>\n", figures.concat())
    }
}
