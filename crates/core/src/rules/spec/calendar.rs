//! Specifications of windows of a calendar.

use std::sync::Arc;

#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

use super::{Field, Problems};
use crate::algorithm::Window;
use crate::calendar::{Calendar, CalendarError, CalendarUnit};
use crate::rules::Request;

const UNIT: &str = "must be day, week, month, quarter or year";
const ANCHOR: &str = "must be a whole number";
const ANCHOR_FROM: &str = "must be the name of an attribute: 1 to 64 bytes";

/// Windows of a calendar that are not checked yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Deserialize, Serialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields, rename_all = "kebab-case"))]
pub struct CalendarSpec {
    /// The length of a window. Required.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Field::is_unset"))]
    pub unit: Field<CalendarUnit>,
    /// Name of the time zone; by default UTC.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Field::is_unset"))]
    pub zone: Field<String>,
    /// Day on which a window begins: of a week 1 (Monday) to 7, of a month 1 to 31, of a quarter and a
    /// year that of the first month; by default 1.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Field::is_unset"))]
    pub anchor: Field<u64>,
    /// Attribute of a request that has the anchor. Without a valid one `anchor` counts.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Field::is_unset"))]
    pub anchor_from: Field<String>,
}

impl CalendarSpec {
    /// Returns `true` if no field is given.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Builds the windows, and the name of the attribute with the anchor.
    pub(super) fn build(&self, problems: &mut Problems) -> (Field<Window>, Option<Arc<str>>) {
        let unit = problems.read("unit", self.unit, UNIT);
        let unit = problems.required("unit", unit);
        let zone = problems.check("zone", &self.zone, CalendarError::Zone, |_| true);
        let anchor = problems.read("anchor", self.anchor, ANCHOR);
        let is_name = |name: &String| (1..=Request::MAX_ATTRIBUTE_NAME).contains(&name.len());
        let from = problems.check("anchor-from", &self.anchor_from, ANCHOR_FROM, is_name);
        let from = from.ok().flatten().map(|name| name.as_str().into());
        let (Some(unit), Ok(zone), Ok(anchor)) = (unit, zone, anchor) else {
            return (Field::Unreadable, from);
        };
        if unit == CalendarUnit::Day && from.is_some() {
            problems.add("anchor-from", CalendarError::Anchor(unit));
        }
        match Calendar::new(unit, zone.map_or(Calendar::DEFAULT_ZONE, String::as_str), anchor) {
            Ok(calendar) => (Field::Set(calendar.into()), from),
            Err(error) => {
                problems.add(if error == CalendarError::Zone { "zone" } else { "anchor" }, error);
                (Field::Unreadable, from)
            }
        }
    }
}
