//! Texts, times, spans and numbers as pages show them.

use maud::{Markup, html};
use prost_types::{Duration, Timestamp};
use rlaas_proto::wait_words;

/// Most characters of a text that is not folded.
const MAX_UNFOLDED: usize = 120;

/// Shows a text from elsewhere: apart from what surrounds it, whatever its direction, and with
/// characters that nobody sees as their codes.
pub(super) fn foreign(text: &str) -> Markup {
    html! {
        @if text.is_empty() {
            span.muted { "(empty)" }
        } @else {
            bdi.foreign {
                @for piece in text.split_inclusive(is_hidden) {
                    @let hidden = piece.chars().next_back().filter(|char| is_hidden(*char));
                    (piece.strip_suffix(is_hidden).unwrap_or(piece))
                    @if let Some(hidden) = hidden { span.code-point { (code_point(hidden)) } }
                }
            }
        }
    }
}

/// Shows a dash in place of what is not known.
pub(super) fn or_dash(shown: Option<Markup>) -> Markup {
    shown.unwrap_or_else(|| html! { span.muted { "–" } })
}

/// Shows a text of somebody, of which a long one is folded; a dash in place of none.
pub(super) fn folded(text: &str) -> Markup {
    let begin = text.char_indices().nth(MAX_UNFOLDED).map(|(end, _)| &text[..end]);
    html! {
        @if text.is_empty() { (or_dash(None)) }
        @else if let Some(begin) = begin { details { summary { (foreign(&format!("{begin}…"))) } (foreign(text)) } }
        @else { (foreign(text)) }
    }
}

/// Shows items one after another, with a text between them.
pub(super) fn joined<T>(
    items: impl IntoIterator<Item = T>,
    between: &str,
    show: impl Fn(T) -> Markup,
) -> Markup {
    html! {
        @for (position, item) in items.into_iter().enumerate() {
            @if position > 0 { (between) }
            (show(item))
        }
    }
}

/// Returns a text from elsewhere for places that have no marks, such as titles: characters that nobody
/// sees are their codes.
pub(super) fn visible(text: &str) -> String {
    let shown = |char| if is_hidden(char) { code_point(char) } else { String::from(char) };
    text.chars().map(shown).collect()
}

fn code_point(char: char) -> String {
    format!("U+{:04X}", u32::from(char))
}

/// Returns the characters of a text of several lines that nobody sees, each with its line.
pub(super) fn hidden_characters(text: &str) -> Vec<(usize, char)> {
    let lines = (1..).zip(text.split('\n'));
    lines
        .flat_map(|(line, text)| {
            text.chars().filter(|char| is_hidden(*char)).map(move |char| (line, char))
        })
        .collect()
}

/// Returns `true` for control characters, marks of direction and others that leave no trace. Marks on
/// a letter before them are seen.
fn is_hidden(char: char) -> bool {
    if char.is_ascii() {
        return char.is_ascii_control();
    }
    let within: String = ['x', char].iter().collect();
    within.escape_debug().nth(1) != Some(char)
}

/// Shows a time. A script puts it into the reader's zone.
pub(super) fn time(time: Option<&Timestamp>) -> Markup {
    html! {
        @match time {
            Some(time) => time datetime=(time.to_string()) { (time_text(time)) },
            None => span.muted { "unknown" }
        }
    }
}

/// Returns a time to the second.
pub(super) fn time_text(time: &Timestamp) -> String {
    let exact = time.to_string();
    let shown = exact.split(['.', 'Z']).next().unwrap_or_default().replace('T', " ");
    format!("{shown} UTC")
}

/// Shows a measured span, or that there is none. What is below its two largest units is cut off.
pub(super) fn span(span: Option<&Duration>) -> Markup {
    html! {
        @match span.map(micros) {
            Some(micros) => (span_text(micros - micros % step(micros))),
            None => span.muted { "none" }
        }
    }
}

/// Shows the time until something happens.
pub(super) fn wait(wait: Option<&Duration>) -> Markup {
    html! { (wait_words(&wait.copied().unwrap_or_default())) }
}

/// Returns a span that somebody has set, exactly.
pub(super) fn exact_span_text(span: &Duration) -> String {
    span_text(micros(span))
}

/// Returns a span in microseconds; one that is not valid is none.
fn micros(span: &Duration) -> u128 {
    std::time::Duration::try_from(*span).unwrap_or_default().as_micros()
}

/// Returns what a span is rounded to, so that it has two units at most.
const fn step(micros: u128) -> u128 {
    match micros {
        ..1_000 => 1,
        1_000..1_000_000 => 1_000,
        1_000_000..10_000_000 => 100_000,
        10_000_000..3_600_000_000 => 1_000_000,
        3_600_000_000..86_400_000_000 => 60_000_000,
        _ => 3_600_000_000,
    }
}

fn span_text(micros: u128) -> String {
    let mut rest = micros;
    let units = [
        ("d", 86_400_000_000),
        ("h", 3_600_000_000),
        ("min", 60_000_000),
        ("s", 1_000_000),
        ("ms", 1_000),
        ("µs", 1),
    ];
    let parts = units.into_iter().filter_map(|(unit, size)| {
        let count = rest / size;
        rest %= size;
        (count > 0).then(|| format!("{count} {unit}"))
    });
    let text = parts.collect::<Vec<_>>().join(" ");
    if text.is_empty() { "0 s".to_owned() } else { text }
}

/// Shows a number.
pub(super) fn number(number: u64) -> Markup {
    html! { data.number value=(number) { (grouped(number)) } }
}

/// Returns the digits of a number, in groups of three.
pub(super) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::new();
    for (position, digit) in digits.char_indices() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_texts_are_escaped_apart_and_visible() {
        for (text, shown) in [
            ("alice", "alice"),
            ("<script>alert(1)</script>", "&lt;script&gt;alert(1)&lt;/script&gt;"),
            ("\"'&", "&quot;'&amp;"),
            ("a\0b", "a<span class=\"code-point\">U+0000</span>b"),
            ("\u{202e}txt", "<span class=\"code-point\">U+202E</span>txt"),
            ("\u{200b}", "<span class=\"code-point\">U+200B</span>"),
            ("\n\u{9b}", {
                "<span class=\"code-point\">U+000A</span><span class=\"code-point\">U+009B</span>"
            }),
            ("e\u{301} हिन्दी שלום", "e\u{301} हिन्दी שלום"),
        ] {
            let shown = format!("<bdi class=\"foreign\">{shown}</bdi>");
            assert_eq!(foreign(text).into_string(), shown, "{text:?}");
        }
        assert_eq!(foreign("").into_string(), "<span class=\"muted\">(empty)</span>");
        assert_eq!(visible("<a>\u{202e}\0"), "<a>U+202EU+0000");
    }

    #[test]
    fn measured_spans_are_cut_off_and_set_spans_exact() {
        for (micros, measured, exact) in [
            (0, "0 s", "0 s"),
            (7, "7 µs", "7 µs"),
            (1_001, "1 ms", "1 ms 1 µs"),
            (999_001, "999 ms", "999 ms 1 µs"),
            (1_250_000, "1 s 200 ms", "1 s 250 ms"),
            (59_999_999, "59 s", "59 s 999 ms 999 µs"),
            (5_415_000_000, "1 h 30 min", "1 h 30 min 15 s"),
            (5_400_000_000, "1 h 30 min", "1 h 30 min"),
            (86_400_000_001, "1 d", "1 d 1 µs"),
            (2_678_400_000_000, "31 d", "31 d"),
        ] {
            let of = Duration::try_from(std::time::Duration::from_micros(micros)).expect("a span");
            assert_eq!(exact_span_text(&of), exact);
            assert_eq!(span(Some(&of)).into_string(), measured);
        }
    }

    #[test]
    fn numbers_and_times_are_for_scripts_too() {
        let shown = number(1_234_567).into_string();
        let expected = "<data class=\"number\" value=\"1234567\">1,234,567</data>";
        assert_eq!(shown, expected);
        let at = Timestamp { seconds: 0, nanos: 500_000_000 };
        assert_eq!(
            time(Some(&at)).into_string(),
            "<time datetime=\"1970-01-01T00:00:00.500Z\">1970-01-01 00:00:00 UTC</time>"
        );
    }
}
