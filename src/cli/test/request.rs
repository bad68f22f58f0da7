//! The requests of steps: checks and Envoy's descriptors, each with what the case has for all of its
//! steps.

use std::collections::HashMap;
use std::fmt;

use rlaas_proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use rlaas_proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{
    Entry, RateLimitOverride,
};
use rlaas_proto::envoy::service::ratelimit::v3::RateLimitRequest;
use rlaas_proto::envoy::r#type::v3::RateLimitUnit;
use rlaas_proto::ratelimit::v1::CheckRequest;
use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, SeqAccess, Visitor};

use super::one_or::OneOr;
use rlaas_proto::values::check_request;

use crate::api::envoy;

/// A request as the server would receive it.
#[derive(Clone, Debug)]
pub(super) enum StepRequest {
    /// `Check`.
    Check(CheckRequest),
    /// `ShouldRateLimit` of Envoy.
    Descriptors(RateLimitRequest),
}

/// `check` of a case or a step.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CheckFields {
    user_id: Option<String>,
    resource: Option<String>,
    attributes: Option<HashMap<String, String>>,
    cost: Option<u64>,
    dry_run: Option<bool>,
    request_id: Option<String>,
    costs: Option<HashMap<String, u64>>,
    at_least: Option<u64>,
}

/// `descriptors` of a case or a step.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DescriptorsFields {
    domain: Option<String>,
    hits_addend: Option<u32>,
    descriptors: Option<Vec<DescriptorFields>>,
    /// Short for one descriptor.
    entries: Option<Entries>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct DescriptorFields {
    entries: Entries,
    hits_addend: Option<u64>,
    #[serde(default)]
    is_negative_hits: bool,
    limit: Option<LimitFields>,
}

/// A limit that the request brings along.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LimitFields {
    requests_per_unit: u32,
    unit: String,
}

/// `{KEY: VALUE, …}`, `[[KEY, VALUE], …]` or Envoy's `[{key: KEY, value: VALUE}, …]`, in order.
#[derive(Clone, Debug)]
struct Entries(Vec<Entry>);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EntryFields {
    key: String,
    #[serde(default)]
    value: String,
}

/// The fields of a case or a step that make requests.
#[derive(Clone, Debug)]
pub(super) struct GivenFields {
    pub(super) check: Option<CheckFields>,
    pub(super) descriptors: Option<DescriptorsFields>,
}

impl StepRequest {
    /// Returns the request of a step, whose fields replace those of its case.
    ///
    /// # Errors
    ///
    /// The reason why there is none.
    pub(super) fn new(case: GivenFields, step: GivenFields) -> Result<Self, String> {
        match ((step.check, step.descriptors), (case.check, case.descriptors)) {
            ((Some(_), Some(_)), _) => Err("descriptors: must not be given with check".to_owned()),
            ((None, None), (None, None)) => {
                Err("check, descriptors or repeat is missing".to_owned())
            }
            ((Some(own), None), (shared, _)) => {
                Ok(Self::Check(own.over(shared.unwrap_or_default())))
            }
            ((None, None), (Some(shared), _)) => {
                Ok(Self::Check(shared.over(CheckFields::default())))
            }
            ((None, own), (_, shared)) => {
                let own = own.unwrap_or_default();
                own.over(shared.unwrap_or_default()).map(Self::Descriptors)
            }
        }
    }

    /// Returns the number of descriptors; `None` for a check.
    pub(super) fn descriptors(&self) -> Option<usize> {
        match self {
            Self::Check(_) => None,
            Self::Descriptors(request) => Some(request.descriptors.len()),
        }
    }

    /// Returns why the server would refuse the request, whatever the rules; the text begins with the
    /// field.
    pub(super) fn invalid(&self) -> Option<String> {
        match self {
            Self::Check(request) => check_request(request).err().map(|error| error.to_string()),
            Self::Descriptors(request) => {
                envoy::parse(request).err().map(|error| error.to_string())
            }
        }
    }
}

impl CheckFields {
    fn over(self, shared: Self) -> CheckRequest {
        CheckRequest {
            user_id: self.user_id.or(shared.user_id).unwrap_or_default(),
            resource: self.resource.or(shared.resource).unwrap_or_default(),
            attributes: self.attributes.or(shared.attributes).unwrap_or_default(),
            cost: self.cost.or(shared.cost),
            dry_run: self.dry_run.or(shared.dry_run).unwrap_or_default(),
            request_id: self.request_id.or(shared.request_id).unwrap_or_default(),
            costs: self.costs.or(shared.costs).unwrap_or_default(),
            at_least: self.at_least.or(shared.at_least).unwrap_or_default(),
        }
    }
}

impl DescriptorsFields {
    fn over(self, shared: Self) -> Result<RateLimitRequest, String> {
        let has_own = self.descriptors.is_some() || self.entries.is_some();
        let given = if has_own {
            (self.descriptors, self.entries)
        } else {
            (shared.descriptors, shared.entries)
        };
        let descriptors = match given {
            (Some(_), Some(_)) => {
                return Err("entries: must not be given with descriptors".to_owned());
            }
            (list, None) => list.into_iter().flatten().map(DescriptorFields::message).collect(),
            (None, Some(Entries(entries))) => {
                Ok(vec![RateLimitDescriptor { entries, ..RateLimitDescriptor::default() }])
            }
        };
        Ok(RateLimitRequest {
            domain: self.domain.or(shared.domain).unwrap_or_default(),
            hits_addend: self.hits_addend.or(shared.hits_addend).unwrap_or_default(),
            descriptors: descriptors?,
        })
    }
}

impl DescriptorFields {
    fn message(self) -> Result<RateLimitDescriptor, String> {
        let Self { entries: Entries(entries), hits_addend, is_negative_hits, limit } = self;
        let limit = limit.map(LimitFields::message).transpose()?;
        Ok(RateLimitDescriptor { entries, limit, hits_addend, is_negative_hits })
    }
}

impl LimitFields {
    fn message(self) -> Result<RateLimitOverride, String> {
        let unit = RateLimitUnit::from_str_name(&self.unit.to_ascii_uppercase());
        let unit = unit.filter(|unit| *unit != RateLimitUnit::Unknown);
        let unit = unit.ok_or("limit.unit: must be SECOND, MINUTE, HOUR, DAY, MONTH or YEAR")?;
        Ok(RateLimitOverride {
            requests_per_unit: self.requests_per_unit,
            unit: unit.into(),
            unit_multiplier: None,
        })
    }
}

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(EntriesVisitor)
    }
}

struct EntriesVisitor;

impl<'de> Visitor<'de> for EntriesVisitor {
    type Value = Entries;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("{KEY: VALUE, …}, [[KEY, VALUE], …] or [{key: KEY, value: VALUE}, …]")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
        let mut entries = Vec::new();
        while let Some((key, value)) = map.next_entry()? {
            entries.push(Entry { key, value });
        }
        Ok(Entries(entries))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Entries, A::Error> {
        let mut entries = Vec::new();
        while let Some(item) = items.next_element()? {
            let OneOr::Other(EntryFields { key, value }) = item else {
                return Err(A::Error::custom("must be [KEY, VALUE] or {key: KEY, value: VALUE}"));
            };
            entries.push(Entry { key, value });
        }
        Ok(Entries(entries))
    }
}
