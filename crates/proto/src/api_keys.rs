//! What the text of an API key looks like: `rlaas_`, an environment, `_` and letters and digits, which begin with
//! the id of the key.

/// Begins every API key.
pub const API_KEY_PREFIX: &str = "rlaas_";
/// Characters of the id of an API key.
pub const API_KEY_ID_LEN: usize = 8;
/// Characters of the random part of an API key, which begins with the id.
const RANDOM_LEN: usize = 43;
/// Most characters of an environment.
const MAX_ENVIRONMENT_LEN: usize = 16;

/// The part of an API key that is no secret, found in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TypedApiKey<'a> {
    /// Its beginning, up to the end of its id.
    pub beginning: &'a str,
    /// Letters and digits after its environment, of which the id is the first 8.
    pub len: usize,
}

impl<'a> TypedApiKey<'a> {
    /// Returns the longest of all that look like an API key in a text. An id of something else may look the same,
    /// unless it [is a secret](Self::is_secret).
    pub fn find(text: &'a str) -> Option<Self> {
        let starts = text.match_indices(API_KEY_PREFIX);
        starts.filter_map(|(start, _)| Self::at_start(&text[start..])).max_by_key(|key| key.len)
    }

    /// Returns the API key, or its beginning, that a text begins with.
    pub fn at_start(text: &'a str) -> Option<Self> {
        let (environment, random) = text.strip_prefix(API_KEY_PREFIX)?.split_once('_')?;
        let is_lower = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let is_environment = (1..=MAX_ENVIRONMENT_LEN).contains(&environment.len())
            && environment.bytes().all(is_lower);
        let len = random.bytes().take_while(u8::is_ascii_alphanumeric).count();
        let end = text.len() - random.len() + API_KEY_ID_LEN;
        (is_environment && len >= API_KEY_ID_LEN).then(|| Self { beginning: &text[..end], len })
    }

    /// Returns the API key, or its beginning, that a text consists of.
    pub fn whole(text: &'a str) -> Option<Self> {
        let is_whole = |key: &Self| key.beginning.len() - API_KEY_ID_LEN + key.len == text.len();
        Self::at_start(text).filter(is_whole)
    }

    /// Returns the id.
    pub fn id(&self) -> &'a str {
        &self.beginning[self.beginning.len() - API_KEY_ID_LEN..]
    }

    /// Returns `true` if nothing but the secret of a key is so long.
    pub fn is_secret(&self) -> bool {
        self.len >= RANDOM_LEN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_beginning_of_an_api_key_ends_with_its_id() {
        let beginning = "rlaas_live_AbCd1234";
        for (text, len) in [
            ("rlaas_live_AbCd1234", 8),
            ("rlaas_live_AbCd1234xyz_9", 11),
            ("RLAAS_API_KEY=\"rlaas_live_AbCd1234x\"", 9),
            ("rlaas_prod_apikey12=rlaas_live_AbCd1234x", 9),
        ] {
            let found = TypedApiKey::find(text);
            assert_eq!(found, Some(TypedApiKey { beginning, len }), "{text}");
            assert_eq!(found.map(|key| key.id()), Some("AbCd1234"), "{text}");
        }
        for text in [
            "AbCd1234",
            "rlaas_live_AbC",
            "rlaas_live",
            "rlaas_Team_engineer",
            "rlaas_aaaaaaaaaaaaaaaaa_engineer",
            "rlaas__engineer",
            "rlaas_t_<script>",
            "rlaas_t_éééé",
        ] {
            assert_eq!(TypedApiKey::find(text), None, "{text}");
        }
    }

    #[test]
    fn a_text_may_be_an_api_key_or_begin_with_it() {
        for (text, begins, is_whole) in [
            ("rlaas_live_AbCd1234", true, true),
            ("rlaas_live_AbCd1234xyz9", true, true),
            ("rlaas_live_AbCd1234-team", true, false),
            ("KEY=rlaas_live_AbCd1234", false, false),
        ] {
            let found = [TypedApiKey::at_start(text), TypedApiKey::whole(text)];
            assert_eq!(found.map(|key| key.is_some()), [begins, is_whole], "{text}");
        }
    }
}
