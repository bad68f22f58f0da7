//! Rates and shares, short enough for a column.

use rlaas_proto::ratelimit::admin::v1::WatchStatsResponse;

/// Returns the length of a point in seconds, at least 1.
pub(super) fn seconds(point: &WatchStatsResponse) -> i64 {
    let at = |time: Option<prost_types::Timestamp>| time.map_or(0, |time| time.seconds);
    at(point.until).saturating_sub(at(point.since)).max(1)
}

/// Returns a count of a point for each of its seconds.
#[expect(clippy::cast_precision_loss, reason = "shown with three digits")]
pub(super) fn per_second(count: u64, point: &WatchStatsResponse) -> f64 {
    count as f64 / seconds(point) as f64
}

/// Shows a rate with up to four digits.
pub(super) fn rate(rate: f64) -> String {
    match rate {
        0.0 => "0".to_owned(),
        rate if rate < 0.05 => "<0.1".to_owned(),
        rate if rate < 99.95 => format!("{rate:.1}").trim_end_matches(".0").to_owned(),
        rate if rate < 9_999.5 => format!("{rate:.0}"),
        rate if rate < 999_950.0 => format!("{:.1}k", rate / 1e3),
        rate if rate < 999_950_000.0 => format!("{:.1}M", rate / 1e6),
        rate => format!("{rate:.0e}"),
    }
}

/// Shows a part of a whole; `-` without a whole.
#[expect(clippy::cast_precision_loss, reason = "shown with two digits")]
pub(super) fn share(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "-".to_owned();
    }
    match part as f64 / whole as f64 * 100.0 {
        0.0 => "0%".to_owned(),
        percent if percent < 1.0 => "<1%".to_owned(),
        percent => format!("{percent:.0}%"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_and_shares_fit_a_column() {
        let rates = [0.0, 0.01, 0.1, 7.0, 99.9, 100.0, 2_500.0, 12_345.0, 1e6, 2.5e8, 1e12, 1e19];
        assert_eq!(
            rates.map(rate),
            [
                "0", "<0.1", "0.1", "7", "99.9", "100", "2500", "12.3k", "1.0M", "250.0M", "1e12",
                "1e19"
            ]
        );
        assert!(rates.iter().all(|one| rate(*one).len() <= 8));
        let shares = [(0, 0), (0, 9), (1, 1_000), (1, 3), (9, 9), (u64::MAX, u64::MAX)];
        assert_eq!(
            shares.map(|(part, whole)| share(part, whole)),
            ["-", "0%", "<1%", "33%", "100%", "100%"]
        );
    }
}
