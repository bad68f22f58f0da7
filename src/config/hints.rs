//! What a user may have meant by a key or a value that is not valid.

use figment::value::Value;

/// Minimum Jaro-Winkler similarities at which a known key or value is suggested for an unknown one.
pub(super) const SIMILAR_KEY: f64 = 0.75;
const SIMILAR_VALUE: f64 = 0.85;
const UNITS: &str = "; units are ms, s, m, h, d and w, and months are windows of calendar";

/// Returns the known word that is nearest to another one, if one is near.
pub(super) fn nearest<'a>(
    known: impl Iterator<Item = &'a str>,
    word: &str,
    min_similarity: f64,
) -> Option<&'a str> {
    let near = known.map(|known| (strsim::jaro_winkler(known, word), known));
    let nearest = near.max_by(|(left, _), (right, _)| left.total_cmp(right));
    nearest.filter(|(similarity, _)| *similarity >= min_similarity).map(|(_, known)| known)
}

/// Returns what a requirement lacks for a text that does not meet it: the nearest of its words, or the
/// units of a time.
pub(super) fn of_value(requirement: &str, given: &Value) -> Option<String> {
    let text = given.as_str()?;
    let must_be = requirement.strip_prefix("must be ")?;
    if must_be.starts_with("a window") {
        let is_number = text.starts_with(|first: char| first.is_ascii_digit());
        return (is_number && humantime::parse_duration(text).is_err()).then(|| UNITS.to_owned());
    }
    let words = must_be.split(", ").flat_map(|words| words.split(" or "));
    if words.clone().any(|word| word.contains(' ')) {
        return None;
    }
    nearest(words, text, SIMILAR_VALUE).map(|word| format!(", did you mean {word}?"))
}
