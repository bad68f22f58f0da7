//! Puts the lines of all inputs in order.
//!
//! Each input is put in order by itself: lines that are far ahead of all before them are checked,
//! then lines are held until no older one may come. Inputs are merged by time. The order is a
//! function of the inputs and the settings alone: it does not depend on how fast anything is read.

mod gap;
mod merge;
mod reorder;
mod stream;
#[cfg(test)]
mod tests;

pub(crate) use merge::Merge;
pub(crate) use stream::{LineSink, OrderSettings, ShownLine, Source, SourceLine, earliest_time};
