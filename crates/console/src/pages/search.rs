//! API keys among the ids that are looked for.

use rlaas_proto::ratelimit::admin::v1::{ApiKey, ListKeysRequest};

use crate::calls::{EVERY_PROJECT, READ_TIME, field_of, within};
use crate::fields::Link;
use crate::visit::Visitor;

/// Begins every API key.
const KEY_PREFIX: &str = "rlaas_";
/// Characters of the id of an API key.
const KEY_ID_LEN: usize = 8;

/// Returns the beginning of an API key, up to the end of its id: it is no secret.
pub(super) fn beginning_of_key(text: &str) -> Option<&str> {
    let (_, random) = text.strip_prefix(KEY_PREFIX)?.split_once('_')?;
    let is_id = |id: &str| id.bytes().all(|byte| byte.is_ascii_alphanumeric());
    let id = random.get(..KEY_ID_LEN).filter(|id| is_id(id))?;
    Some(&text[..text.len() - random.len() + id.len()])
}

/// Returns the API key with an id, of a project that the visitor has a role for.
pub(super) async fn key_with_id(visitor: &Visitor, id: &str) -> Option<ApiKey> {
    if id.len() != KEY_ID_LEN {
        return None;
    }
    let (project_id, key_id) = (EVERY_PROJECT.to_owned(), id.to_owned());
    let request = ListKeysRequest { project_id, key_id, ..ListKeysRequest::default() };
    let keys = visitor.projects().list_keys(within(READ_TIME, request)).await.ok()?;
    keys.into_inner().keys.into_iter().next()
}

/// Returns the link to an API key in the page of its project, with its forms open.
pub(super) fn key_link(key: &ApiKey) -> String {
    let link = Link::to("project").with("id", field_of(&key.project_id)).with("key", &key.id);
    format!("{link}#key-{}", key.id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_beginning_of_an_api_key_ends_with_its_id() {
        for text in ["rlaas_live_AbCd1234", "rlaas_live_AbCd1234xyz_9"] {
            assert_eq!(beginning_of_key(text), Some("rlaas_live_AbCd1234"), "{text}");
        }
        for text in ["AbCd1234", "rlaas_live_AbC", "rlaas_live", "rlaas_t_<script>", "rlaas_t_éééé"]
        {
            assert_eq!(beginning_of_key(text), None, "{text}");
        }
    }
}
