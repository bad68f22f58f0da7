//! Charts as SVG and pages as HTML: data in, text out.
//!
//! Everything is drawn here, without scripts, fonts or images from elsewhere, so that a page is one
//! file that opens without a network. Colours are variables of the style sheet ([`Page::STYLE`]),
//! which has one set for light and one for dark screens. No series is told from another by its
//! colour alone: lines differ in their dashes, bars in their outline. Every chart has a description
//! for those who do not see it, and a table of its numbers.
//!
//! Texts may come from anybody. They are escaped here ([`escaped`]), and only here.
//!
//! The module does not know what is charted.

mod axis;
mod bars;
mod figure;
mod histogram;
mod numbers;
mod page;
mod text;
mod time_chart;

pub use bars::{BarChart, BarRow};
pub use figure::{ChartTable, Tone};
pub use histogram::{DurationBar, HistogramChart};
pub use numbers::{count_text, length_text, share_text};
pub use page::{Page, Stat};
pub use text::{escaped, shortened};
pub use time_chart::{ChartSeries, SeriesForm, Stacking, TimeChart, utc_text};
