//! The options that name keys: by a request, by their parts, by their id, or by a descriptor.

use anyhow::{anyhow, bail};
use clap::{ArgGroup, Args};
use rlaas_proto::ratelimit::admin::v1::{
    DescriptorEntry, DescriptorRef, KeyPart, KeyRef, Selector, selector,
};
use rlaas_proto::ratelimit::v1::CheckRequest;

use crate::cli::key_value;

/// Names keys: exactly one of the group is given.
#[derive(Args, Debug)]
#[command(group(ArgGroup::new("whose").required(true).args(["user", "part", "id", "envoy"])))]
pub(super) struct SelectionArgs {
    /// User id: the keys that a request of this user meets
    user: Option<String>,
    /// Resource of the request, such as a path
    #[arg(long, requires = "user", value_name = "R")]
    resource: Option<String>,
    /// Attribute of the request; may be repeated
    #[arg(long = "attribute", requires = "user", value_name = "NAME=VALUE", value_parser = key_value)]
    attributes: Vec<(String, String)>,
    /// Part of a key, or its name if it is absent; may be repeated
    #[arg(long, value_name = "NAME=VALUE")]
    part: Vec<String>,
    /// Id of a key, as `inspect --json` prints it
    #[arg(long, requires = "rule")]
    id: Option<String>,
    /// Descriptor of Envoy: its domain and its entries
    #[arg(long, num_args = 2.., value_names = ["DOMAIN", "K=V"])]
    envoy: Vec<String>,
    /// Only the key of this rule
    #[arg(long)]
    rule: Option<String>,
    /// Project of the rules [default: that of requests without an API key]
    #[arg(long, value_name = "ID", conflicts_with = "envoy")]
    project: Option<String>,
}

impl SelectionArgs {
    /// Returns the message that names the keys.
    pub(super) fn selector(&self) -> anyhow::Result<Selector> {
        Ok(Selector {
            whose: Some(self.whose()?),
            rule: self.rule.clone().unwrap_or_default(),
            project_id: project_id(self.project.as_deref()),
        })
    }

    fn whose(&self) -> anyhow::Result<selector::Whose> {
        if let Some(user) = &self.user {
            return Ok(selector::Whose::Request(CheckRequest {
                user_id: user.clone(),
                resource: self.resource.clone().unwrap_or_default(),
                attributes: self.attributes.iter().cloned().collect(),
                ..CheckRequest::default()
            }));
        }
        if let Some(id) = &self.id {
            let key = KeyRef { id: id.clone(), ..KeyRef::default() };
            return Ok(selector::Whose::Key(key));
        }
        if let [domain, entries @ ..] = &*self.envoy {
            let domain = domain.clone();
            let entries = self::entries(entries)?;
            return Ok(selector::Whose::Envoy(DescriptorRef { domain, entries }));
        }
        let parts = self.part.iter().map(|text| part(text)).collect();
        Ok(selector::Whose::Key(KeyRef { parts, ..KeyRef::default() }))
    }
}

/// Stands for every project that the caller has the role for.
pub(super) const EVERY_PROJECT: &str = "-";

/// Returns the project of an option: `_` is that of requests without an API key.
pub(super) fn project_id(given: Option<&str>) -> String {
    given.filter(|id| *id != "_").unwrap_or_default().to_owned()
}

/// Parses the entries of one descriptor.
pub(super) fn entries(texts: &[String]) -> anyhow::Result<Vec<DescriptorEntry>> {
    if texts.is_empty() {
        bail!("--envoy must have a domain and at least one KEY=VALUE");
    }
    let entry = |text: &String| {
        let (key, value) = text
            .split_once('=')
            .ok_or_else(|| anyhow!("--envoy must have KEY=VALUE after the domain, not {text:?}"))?;
        Ok(DescriptorEntry { key: key.to_owned(), value: value.to_owned() })
    };
    texts.iter().map(entry).collect()
}

fn part(text: &str) -> KeyPart {
    match text.split_once('=') {
        Some((name, value)) => KeyPart { name: name.to_owned(), value: Some(value.to_owned()) },
        None => KeyPart { name: text.to_owned(), value: None },
    }
}
