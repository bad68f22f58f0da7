//! The formats of metrics: `OpenMetrics`, and the older text format of Prometheus.
//!
//! **Source:** `OpenMetrics` 1.0.0; Prometheus' exposition formats, text-based format 0.0.4.

/// A format of metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exposition {
    /// `OpenMetrics` 1.0.0.
    OpenMetrics,
    /// The text format of Prometheus, which every scraper can read.
    Text,
}

impl Exposition {
    /// Returns `OpenMetrics` if the `Accept` header of a scraper names it, or else the text format.
    pub fn from_accept(accept: &str) -> Self {
        if accept.contains("application/openmetrics-text") { Self::OpenMetrics } else { Self::Text }
    }

    /// Returns the `Content-Type` of the format.
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// Converts `OpenMetrics` to the text format. In the text format the names of counters and infos
/// have the suffix of their samples, an info is a gauge, and there is no `# UNIT` or `# EOF` line.
pub(super) fn as_text(open_metrics: &str) -> String {
    let mut text = String::with_capacity(open_metrics.len() + 1024);
    let mut push = |parts: &[&str]| {
        text.extend(parts.iter().copied());
        text.push('\n');
    };
    let mut help = "";
    for line in open_metrics.lines() {
        if let Some(described) = line.strip_prefix("# HELP ") {
            help = described;
        } else if let Some((name, kind)) =
            line.strip_prefix("# TYPE ").and_then(|typed| typed.split_once(' '))
        {
            let (suffix, kind) = match kind {
                "counter" => ("_total", "counter"),
                "info" => ("_info", "gauge"),
                kind => ("", kind),
            };
            let help = help.strip_prefix(name).unwrap_or_default();
            push(&["# HELP ", name, suffix, help]);
            push(&["# TYPE ", name, suffix, " ", kind]);
        } else if !line.starts_with('#') {
            push(&[line]);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_metrics_is_used_if_it_is_accepted() {
        let prometheus = "application/openmetrics-text;version=1.0.0,text/plain;q=0.5,*/*;q=0.1";
        assert_eq!(Exposition::from_accept(prometheus), Exposition::OpenMetrics);
        for accept in ["", "*/*", "text/plain", "text/html,*/*;q=0.8"] {
            assert_eq!(Exposition::from_accept(accept), Exposition::Text, "{accept}");
        }
    }

    #[test]
    fn text_format_adds_suffixes_to_metric_names() {
        let open_metrics = "# HELP a A.\n# TYPE a counter\na_total{b=\"# EOF\"} 1\n# HELP c C.\n\
                            # TYPE c info\nc_info{d=\"e\"} 1\n# HELP f_s F.\n# TYPE f_s gauge\n\
                            # UNIT f_s s\nf_s 2\n# EOF\n";
        let text = "# HELP a_total A.\n# TYPE a_total counter\na_total{b=\"# EOF\"} 1\n\
                    # HELP c_info C.\n# TYPE c_info gauge\nc_info{d=\"e\"} 1\n\
                    # HELP f_s F.\n# TYPE f_s gauge\nf_s 2\n";
        assert_eq!(as_text(open_metrics), text);
    }
}
