//! Rules as a management server sends them: a resource is a domain with its descriptors.
//!
//! Each descriptor of the top is read by itself, as one of a file, and what was made of its bytes is kept: a
//! response has all rules, of which few have changed. Their size is bounded before anything is made of them.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use figment::value::{Dict, Value};
use prost::Message;
use prost_reflect::{DynamicMessage, MessageDescriptor, SerializeOptions};
use rlaas_auth::ProjectId;
use rlaas_proto::envoy::service::discovery::v3::DiscoveryResponse;
use rlaas_proto::json::POOL;
use rlaas_proto::ratelimit::config::ratelimit::v3::RateLimitConfig;

use super::file::{self, DescriptorPath, TWICE};
use super::{Domains, Siblings, TreeSettings, scan};
use crate::config::problem::{Notice, Problem, Problems};
use crate::config::section::Section;
use crate::config::sources;
use crate::rules::descriptors::Descriptor;

/// The full names of the messages of a resource and of a descriptor.
const RESOURCE: &str = "ratelimit.config.ratelimit.v3.RateLimitConfig";
const DESCRIPTOR: &str = "ratelimit.config.ratelimit.v3.RateLimitDescriptor";
/// Bytes that a response may have for each descriptor that is allowed, as [`scan::scan`] counts them.
const BYTES_EACH: usize = 1024;

/// A domain and its rules, as a management server has sent them.
#[derive(Clone, Debug)]
pub struct EnvoyResource {
    /// What problems of it are problems of.
    origin: Arc<str>,
    domain: String,
    descriptors: Vec<Arc<SentDescriptor>>,
}

/// A descriptor of the top of a resource, with those below it.
#[derive(Debug)]
struct SentDescriptor {
    message: Vec<u8>,
    /// What was made of the message last.
    made: Mutex<Option<MadeDescriptor>>,
}

/// What is made of a descriptor by some settings.
#[derive(Clone, Debug)]
struct MadeDescriptor {
    settings: TreeSettings,
    /// The descriptor alone.
    siblings: Vec<Descriptor>,
    /// Their keys begin as if the descriptor were the first one.
    notices: Vec<Notice>,
}

/// Returns a message of the protocol.
fn message(name: &str) -> MessageDescriptor {
    POOL.get_message_by_name(name).expect("the name of a message")
}

impl EnvoyResource {
    /// Beginning of the origin of each.
    pub const ORIGIN: &str = "resource ";
    /// Type of the resources.
    pub const TYPE_URL: &str = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";

    /// Reads the resources of a response. What was made of the same descriptors in `before` is used again.
    ///
    /// # Errors
    ///
    /// The type is another one, there are more than `most` resources or descriptors, they are too large, or the
    /// bytes are not of the type. Descriptors are decoded later, with the configuration.
    pub fn read_all(
        response: &DiscoveryResponse,
        before: &[Self],
        most: usize,
    ) -> Result<Arc<[Self]>, String> {
        let DiscoveryResponse { resources, type_url, .. } = response;
        let mut types = resources.iter().map(|resource| &resource.type_url).chain([type_url]);
        if !types.all(|type_url| type_url == Self::TYPE_URL) {
            return Err(format!("type_url must be {}", Self::TYPE_URL));
        }
        let message_type = message(RESOURCE);
        let (mut descriptors, mut bytes) = (0, 0);
        for (index, resource) in resources.iter().enumerate() {
            let scanned = scan::scan(&resource.value, &message_type, scan::MAX_LEVELS);
            let (count, size) = scanned.map_err(|why| format!("resources[{index}]: {why}"))?;
            (descriptors, bytes) = (descriptors + count, bytes + size);
        }
        for (number, text, most) in [
            // A resource without any takes memory, too.
            (descriptors.max(resources.len()), "descriptors or resources", most),
            // One descriptor may have all the metadata that is allowed.
            (bytes, "bytes of keys, values and metadata", BYTES_EACH * most.max(1_000)),
        ] {
            if number > most {
                let setting = "envoy.xds.max-descriptors";
                return Err(format!("{number} {text}: must be at most {most} ({setting})"));
            }
        }
        // By all that it depends on what is made of them, but settings.
        let kept = before.iter().flat_map(|resource| {
            let place = (&*resource.origin, &*resource.domain);
            resource
                .descriptors
                .iter()
                .map(move |descriptor| ((place, &*descriptor.message), descriptor))
        });
        let kept: HashMap<_, _> = kept.collect();
        let read = resources.iter().map(|resource| {
            let RateLimitConfig { name, domain, descriptors } =
                RateLimitConfig::decode(&*resource.value)
                    .map_err(|error| format!("a resource can't be read: {error}"))?;
            let origin: Arc<str> = format!("{}{name:?}", Self::ORIGIN).into();
            let descriptors = descriptors.iter().map(|descriptor| {
                let message = descriptor.encode_to_vec();
                match kept.get(&((&*origin, &*domain), &*message)).copied() {
                    Some(kept) => Arc::clone(kept),
                    None => Arc::new(SentDescriptor { message, made: Mutex::default() }),
                }
            });
            Ok(Self { descriptors: descriptors.collect(), origin, domain })
        });
        read.collect()
    }

    /// Adds the descriptors to the trees of all files. Problems are added to `root`.
    pub(super) fn add_to(
        &self,
        domains: &mut Domains,
        projects: &BTreeMap<String, ProjectId>,
        root: &Section<'_>,
    ) {
        let Self { origin, domain, descriptors } = self;
        let refuse = |key: String, text: &str| {
            root.add_problem(Problem::invalid(origin.to_string(), key, text.to_owned()));
        };
        if let Some(bounds) = file::outside_bounds(domain) {
            refuse("domain".to_owned(), &bounds);
        }
        if projects.contains_key(domain) {
            let both = "must not be a domain of envoy.projects: the rules of the project decide it";
            refuse("domain".to_owned(), both);
        }
        let path = DescriptorPath { domain, above: &[], settings: domains.settings, file: origin };
        let level = domains.trees.entry(domain.clone()).or_default();
        for (index, sent) in descriptors.iter().enumerate() {
            let place = |key: &str| key.replacen("[0]", &format!("[{index}]"), 1);
            match sent.made(&path) {
                Ok(MadeDescriptor { siblings, notices, .. }) => {
                    for Descriptor { key, value, .. } in &siblings {
                        if !level.pairs.insert((key.clone(), value.clone())) {
                            refuse(place("descriptors[0].key"), TWICE);
                        }
                    }
                    level.descriptors.extend(siblings);
                    for notice in notices {
                        root.add_notice(Notice { key: place(&notice.key), ..notice });
                    }
                }
                Err(Problems(problems)) => problems.into_iter().for_each(|mut problem| {
                    problem.key = place(&problem.key);
                    root.add_problem(problem);
                }),
            }
        }
    }
}

impl SentDescriptor {
    /// Returns what was made of the message, or makes it if the settings are others now.
    fn made(&self, path: &DescriptorPath<'_>) -> Result<MadeDescriptor, Problems> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        match &*made {
            Some(made) if made.settings == path.settings => Ok(made.clone()),
            _ => Ok(made.insert(self.make(path)?).clone()),
        }
    }

    fn make(&self, path: &DescriptorPath<'_>) -> Result<MadeDescriptor, Problems> {
        let (origin, key) = (path.file.to_string(), "descriptors[0]".to_owned());
        let unreadable = || Problem::invalid(origin.clone(), key, "can't be read".to_owned());
        let dict = self.dict().ok_or_else(|| Problems(vec![unreadable()]))?;
        let tree = sources::tree_of(origin, String::new(), dict);
        let mut level = Siblings::default();
        path.read_level(&mut tree.root(), &mut level);
        let notices = tree.notices();
        let spelled = |Problems(all)| Problems(all.into_iter().map(file::as_spelled).collect());
        tree.finish().map_err(spelled)?;
        Ok(MadeDescriptor { settings: path.settings, siblings: level.descriptors, notices })
    }

    /// Returns the content of a file with this descriptor alone.
    fn dict(&self) -> Option<Dict> {
        let descriptor = message(DESCRIPTOR);
        let message = DynamicMessage::decode(descriptor, &*self.message).ok()?;
        // A limit of 0 is one, so what is not set is written, too.
        let options = SerializeOptions::new().use_proto_field_name(true).skip_default_fields(false);
        let json = message.serialize_with_options(serde_json::value::Serializer, &options).ok()?;
        let descriptors = vec![Value::serialize(json).ok()?].into();
        Some(Dict::from([("descriptors".to_owned(), descriptors)]))
    }
}

#[cfg(test)]
mod tests {
    use prost_types::Any;
    use rlaas_proto::ratelimit::config::ratelimit::v3::{
        RateLimitDescriptor, RateLimitPolicy, RateLimitUnit,
    };

    use super::*;
    use crate::config::{Config, Sources};
    use crate::rules::Coupling;

    fn descriptor(value: &str, rate_limit: RateLimitPolicy) -> RateLimitDescriptor {
        RateLimitDescriptor {
            key: "user".to_owned(),
            value: value.to_owned(),
            rate_limit: Some(rate_limit),
            ..RateLimitDescriptor::default()
        }
    }

    fn minute(requests_per_unit: u32) -> RateLimitPolicy {
        let unit = RateLimitUnit::Minute.into();
        RateLimitPolicy { unit, requests_per_unit, ..RateLimitPolicy::default() }
    }

    fn resource(descriptors: Vec<RateLimitDescriptor>) -> Any {
        let (name, domain) = ("first".to_owned(), "shop".to_owned());
        let config = RateLimitConfig { name, domain, descriptors };
        Any { type_url: EnvoyResource::TYPE_URL.into(), value: config.encode_to_vec() }
    }

    fn read(resource: Any, before: &[EnvoyResource]) -> Result<Arc<[EnvoyResource]>, String> {
        let (type_url, resources) = (EnvoyResource::TYPE_URL.to_owned(), vec![resource]);
        let response = DiscoveryResponse { type_url, resources, ..DiscoveryResponse::default() };
        EnvoyResource::read_all(&response, before, 10)
    }

    fn load(resources: &Arc<[EnvoyResource]>, settings: &[(&str, &str)]) -> Result<Config, String> {
        let arguments = settings.iter().map(|(key, value)| ((*key).into(), (*value).into()));
        let arguments = arguments.collect();
        let sources = Sources { resources: Arc::clone(resources), arguments, ..Sources::default() };
        Config::load(&sources).map_err(|problems| problems.to_string())
    }

    #[test]
    fn resources_are_read_as_files_are() {
        for (limit, is_unlimited) in [
            (minute(5), false),
            (minute(0), false),
            (RateLimitPolicy { unlimited: true, ..RateLimitPolicy::default() }, true),
        ] {
            let resource = resource(vec![descriptor("007", limit.clone())]);
            let config = load(&read(resource, &[]).expect("a resource"), &[]);
            let config = config.expect("a configuration");
            let rules: Vec<_> = config.rules.descriptors().iter().collect();
            assert_eq!(rules.len(), 1, "{limit:?}");
            assert_eq!(&*rules[0].name, "shop.user_007");
            let units = rules[0].grant.limit().map(crate::algorithm::Limit::units);
            assert_eq!(units.is_none(), is_unlimited || limit.requests_per_unit == 0, "{limit:?}");
        }
    }

    #[test]
    fn foreign_resources_are_refused() {
        let foreign = Any { type_url: "type.googleapis.com/a.B".to_owned(), value: Vec::new() };
        assert!(read(foreign, &[]).is_err());
        // A varint without end, a field longer than the message, a group, text that is not UTF-8.
        for broken in [&[0xff][..], &[0x1a, 9, 0], &[0x1b, 0x1c], &[0x1a, 3, 0x0a, 1, 0xff]] {
            let type_url = EnvoyResource::TYPE_URL.into();
            assert!(read(Any { type_url, value: broken.to_vec() }, &[]).is_err());
        }
        // Metadata that JSON can't have is a problem of its descriptor.
        let nan = prost_types::value::Kind::NumberValue(f64::NAN);
        let fields = [("a".to_owned(), prost_types::Value { kind: Some(nan) })].into();
        let metadata = Some(prost_types::Struct { fields });
        let broken = RateLimitDescriptor { metadata, ..descriptor("a", minute(1)) };
        let broken = read(resource(vec![broken]), &[]).expect("resources");
        let problems = load(&broken, &[]).expect_err("a number that is none");
        assert!(problems.starts_with("resource \"first\": descriptors[0]: can't be"), "{problems}");
    }

    #[test]
    fn only_changed_descriptors_are_made_again() {
        let made = |of: &EnvoyResource| -> Vec<bool> {
            of.descriptors.iter().map(|one| one.made.lock().expect("a lock").is_some()).collect()
        };
        let sent = |units| {
            let changing = descriptor("b", minute(units));
            resource(vec![descriptor("a", minute(1)), changing, descriptor("c", minute(u32::MAX))])
        };
        let first = read(sent(2), &[]).expect("resources");
        assert_eq!(made(&first[0]), [false, false, false]);
        load(&first, &[]).expect("a configuration");
        let second = read(sent(3), &first).expect("resources");
        assert_eq!(made(&second[0]), [true, false, true]);
        let fresh = || read(sent(3), &[]).expect("resources");
        for settings in [&[][..], &[("envoy.count-refused", "true")], &[("envoy.near-limit", "1")]]
        {
            let again = load(&second, settings).expect("a configuration");
            let expected = load(&fresh(), settings).expect("a configuration");
            assert_eq!(again.rules, expected.rules, "{settings:?}");
            let notices: Vec<_> = again.notices.iter().map(ToString::to_string).collect();
            let cut = "resource \"first\": descriptors[2].rate_limit.requests_per_unit: reduced to";
            assert!(notices.len() == 1 && notices[0].starts_with(cut), "{notices:?}");
        }
        let other = load(&second, &[("envoy.count-refused", "true")]).expect("a configuration");
        assert_eq!(other.rules.descriptors().coupling(), Coupling::EachAlone);
        // The same bytes in another domain are another descriptor.
        let mut elsewhere = RateLimitConfig::decode(&*sent(3).value).expect("a resource");
        elsewhere.domain = "web".to_owned();
        let elsewhere = Any { value: elsewhere.encode_to_vec(), ..sent(3) };
        assert_eq!(made(&read(elsewhere, &second).expect("resources")[0]), [false, false, false]);
    }

    #[test]
    fn problems_have_the_place_of_their_descriptor() {
        let invalid = RateLimitPolicy::default;
        let below = RateLimitDescriptor {
            descriptors: vec![descriptor("d", minute(1)), descriptor("e", invalid())],
            ..descriptor("c", minute(1))
        };
        let (one, two) = (descriptor("a", minute(1)), descriptor("b", invalid()));
        let sent = resource(vec![one.clone(), two, below, one]);
        let problems = load(&read(sent, &[]).expect("resources"), &[]).expect_err("problems");
        let places: Vec<_> = problems.lines().filter_map(|line| line.split(": ").nth(1)).collect();
        let unit = "rate_limit.unit";
        let expected = [
            format!("descriptors[1].{unit}"),
            format!("descriptors[2].descriptors[1].{unit}"),
            "descriptors[3].key".to_owned(),
        ];
        assert_eq!(places, expected, "{problems}");
    }
}
