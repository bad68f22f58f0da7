//! Charts and pages are well-formed, whatever is charted, and need nothing from elsewhere.

use rlaas_core::clock::{Micros, Timestamp};
use rlaas_simulation::chart::{
    BarChart, BarRow, ChartSeries, ChartTable, DurationBar, HistogramChart, Page, SeriesForm,
    Stacking, Stat, TimeChart, Tone,
};

const HOSTILE: &str = "</svg><script>alert('1')</script>\u{202e}\0\u{1b}[2J\"&amp;<!--";

/// Checks that elements are closed in the order in which they were opened, and that every `&` begins
/// an entity. Returns the number of elements.
fn elements(html: &str) -> usize {
    let html = html.strip_prefix("<!DOCTYPE html>").unwrap_or(html);
    let (mut open, mut count, mut rest) = (Vec::new(), 0, html);
    while let Some((text, after)) = rest.split_once('<') {
        assert!(!text.contains('>'), "a bracket in {text:?}");
        check_text(text);
        let (tag, after) = after.split_once('>').expect("an end of the tag");
        rest = after;
        check_text(tag);
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name), "before {after:.60}");
            continue;
        }
        count += 1;
        let name = tag.split_whitespace().next().expect("a name").trim_end_matches('/');
        assert!(name.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{tag}");
        assert!(tag.matches('"').count().is_multiple_of(2), "quotes in {tag}");
        if !tag.ends_with('/') {
            open.push(name);
        }
    }
    assert_eq!(open, Vec::<&str>::new());
    count
}

fn check_text(text: &str) {
    for piece in text.split('&').skip(1) {
        let entity = piece.split(';').next().unwrap_or_default();
        let is_known = matches!(entity, "amp" | "lt" | "gt" | "#34" | "#39");
        assert!(is_known, "{piece:?}");
    }
    let is_hidden = |char: char| char.is_control() && char != '\n' || char == '\u{202e}';
    assert!(!text.contains(is_hidden), "{text:?}");
}

fn time_chart(counts: &[&[u64]], stacking: Stacking) -> String {
    let tones = [Tone::Neutral, Tone::First, Tone::Second];
    let series = counts.iter().zip(tones).map(|(counts, tone)| ChartSeries {
        name: HOSTILE,
        tone,
        form: if tone == Tone::Neutral { SeriesForm::Area } else { SeriesForm::Line },
        counts,
    });
    let chart = TimeChart {
        title: HOSTILE,
        unit: HOSTILE,
        from: Timestamp::from_millis(1_700_000_000_000),
        bucket: Micros::from_secs(10),
        series: series.collect(),
        stacking,
    };
    chart.figure()
}

fn bar_chart(rows: usize, other: Option<u64>) -> String {
    let row = |number: usize| BarRow {
        name: format!("{HOSTILE}{}", "x".repeat(number * 100)),
        count: number as u64,
        other,
        remark: HOSTILE.to_owned(),
    };
    let names = (HOSTILE, other.map(|_| HOSTILE));
    let rows = (0..rows).map(row).collect();
    BarChart { title: HOSTILE, unit: HOSTILE, names, rows, empty: HOSTILE }.figure()
}

fn histogram(bars: &[(u64, u64, u64)]) -> String {
    let bar = |(above, up_to, count): &(u64, u64, u64)| DurationBar {
        above: Micros::from_micros(*above),
        up_to: Micros::from_micros(*up_to),
        count: *count,
    };
    let bars = bars.iter().map(bar).collect();
    let (title, unit, length, empty) = (HOSTILE, HOSTILE, HOSTILE, HOSTILE);
    HistogramChart { title, unit, length, bars, empty }.figure()
}

/// Returns a chart of every kind, with ordinary, few, no and extreme data.
fn figures() -> Vec<String> {
    let many: Vec<u64> = (0..10_000).collect();
    vec![
        time_chart(&[&[3, 5, 9], &[0, 1, 2], &[1]], Stacking::None),
        time_chart(&[&[3, 5, 9], &[0, 1, 2], &[1]], Stacking::Stacked),
        time_chart(&[&many, &many], Stacking::Stacked),
        time_chart(&[&[7]], Stacking::None),
        time_chart(&[&[0, 0], &[0, 0]], Stacking::None),
        time_chart(&[&[u64::MAX / 4, 1]], Stacking::Stacked),
        time_chart(&[&[]], Stacking::None),
        time_chart(&[], Stacking::None),
        bar_chart(5, None),
        bar_chart(5, Some(3)),
        bar_chart(1, Some(0)),
        bar_chart(0, None),
        histogram(&[(0, 1_000, 4), (1_000, 10_000_000, 1), (10_000_000, 1 << 50, 9)]),
        histogram(&[(0, 0, 1)]),
        histogram(&[(5, 5, 1)]),
        histogram(&[(0, 1_000, 0)]),
        histogram(&[]),
    ]
}

#[test]
fn charts_are_well_formed_and_described() {
    for figure in figures() {
        assert!(elements(&figure) > 3, "{figure}");
        assert!(!figure.contains("<script"), "{figure}");
        assert!(figure.contains("aria-label=\"") && figure.contains("<title>"), "{figure}");
        for number in ["NaN", "inf"] {
            assert!(!figure.contains(number), "{number} in {figure}");
        }
    }
}

#[test]
fn drawings_stay_within_their_frame() {
    for figure in figures() {
        for attribute in ["x", "y", "width", "height", "cx", "cy"] {
            for value in figure.split(&format!(" {attribute}=\"")).skip(1) {
                let value: f64 =
                    value.split('"').next().expect("a value").parse().expect("a number");
                assert!((-1.0..=500.0).contains(&value), "{attribute}=\"{value}\" in {figure}");
            }
        }
    }
}

#[test]
fn a_long_time_is_drawn_with_few_points() {
    let counts: Vec<u64> = (0..100_000).map(|number| number % 7).collect();
    let figure = time_chart(&[&counts], Stacking::None);
    assert!(figure.len() < 40_000, "{} bytes", figure.len());
    // The sum is kept.
    let (_, rows) = figure.split_once("<tbody>").expect("a table");
    let cells = rows.split("<td>").skip(1).map(|cell| cell.split('<').next().unwrap_or_default());
    let sum: u64 = cells.map(|cell| cell.replace(',', "").parse::<u64>().expect("a count")).sum();
    assert_eq!(sum, counts.iter().sum::<u64>());
}

#[test]
fn a_page_loads_nothing() {
    let stat = Stat { name: HOSTILE.into(), value: HOSTILE.into(), remark: HOSTILE.into() };
    let body = [
        Page::stats(&[stat]),
        Page::notes(&[HOSTILE.to_owned()]),
        Page::section(HOSTILE, &Page::charts(&figures())),
    ];
    let page = Page {
        title: HOSTILE,
        subtitle: HOSTILE.to_owned(),
        body: body.concat(),
        footer: HOSTILE.to_owned(),
    };
    let html = page.html();
    elements(&html);
    for loading in ["<script", "src=", "url(", "@import", "http:", "https:", "<iframe", "onload"] {
        assert!(!html.contains(loading), "{loading}");
    }
    assert_eq!(html.matches("href=").count(), 1, "the icon");
    assert!(html.contains("default-src 'none'") && html.contains("href=\"data:,\""));
    assert!(html.contains("prefers-color-scheme: dark"));
}

/// Returns the relative luminance of a colour. **Source:** WCAG 2.2, "relative luminance".
fn luminance(colour: &str) -> f64 {
    let part = |at: usize| {
        let value = u8::from_str_radix(&colour[at..at + 2], 16).expect("a colour");
        let value = f64::from(value) / 255.0;
        if value <= 0.040_45 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
    };
    0.2126 * part(1) + 0.7152 * part(3) + 0.0722 * part(5)
}

/// Returns the contrast of two colours of the style sheet. **Source:** WCAG 2.2, "contrast ratio".
fn contrast(sheet: &str, one: &str, other: &str) -> f64 {
    let colour = |name: &str| {
        let (_, value) = sheet.split_once(&format!("--{name}: ")).expect("a variable");
        luminance(&value[..7])
    };
    let (one, other) = (colour(one), colour(other));
    (one.max(other) + 0.05) / (one.min(other) + 0.05)
}

#[test]
fn colours_have_enough_contrast() {
    let (light, dark) = Page::STYLE.split_once("@media (prefers-color-scheme: dark)").expect("two");
    for (sheet, name) in [(light, "light"), (dark, "dark")] {
        for background in ["paper", "card"] {
            for text in ["ink", "soft"] {
                let contrast = contrast(sheet, text, background);
                assert!(contrast >= 4.5, "{name}: {text} on {background}: {contrast}");
            }
            for line in ["t0", "t1", "t2", "t3", "t4", "good", "bad"] {
                let contrast = contrast(sheet, line, background);
                assert!(contrast >= 3.0, "{name}: {line} on {background}: {contrast}");
            }
        }
    }
}
