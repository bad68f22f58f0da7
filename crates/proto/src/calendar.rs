//! Windows of a calendar in words.

use crate::ratelimit::v1::CalendarWindow;
use crate::ratelimit::v1::calendar_window::Unit;

impl CalendarWindow {
    /// Returns the windows in words.
    ///
    /// ```
    /// use rlaas_proto::ratelimit::v1::CalendarWindow;
    /// use rlaas_proto::ratelimit::v1::calendar_window::Unit;
    ///
    /// let month = CalendarWindow { unit: Unit::Month.into(), anchor: 15, ..Default::default() };
    /// assert_eq!(month.words(), "month from day 15 (UTC)");
    /// ```
    pub fn words(&self) -> String {
        let unit = match self.unit() {
            Unit::Unspecified => "calendar window",
            Unit::Day => "day",
            Unit::Week => "week",
            Unit::Month => "month",
            Unit::Quarter => "quarter",
            Unit::Year => "year",
        };
        let zone = if self.zone.is_empty() { "UTC" } else { &self.zone };
        let anchor = match (&*self.anchor_from, self.anchor) {
            ("", 0 | 1) => String::new(),
            ("", day) => format!(" from day {day}"),
            (attribute, day) => format!(" from day attributes.{attribute}, else {}", day.max(1)),
        };
        format!("{unit}{anchor} ({zone})")
    }
}
