//! A request of recorded traffic.

use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashTable};
use rlaas_core::algorithm::Limit;
use rlaas_core::clock::Timestamp;
use rlaas_core::rules::Request;
use rlaas_core::rules::descriptors::{DescriptorRequest, HitsAddend, RequestDescriptor};

/// A request as it was recorded. Not checked against the bounds of requests.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RecordedRequest {
    /// A request by user, resource and attributes.
    Fields(RecordedFields),
    /// A request by descriptors, as Envoy sends them.
    Descriptors(RecordedDescriptors),
}

/// A request by user, resource and attributes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct RecordedFields {
    /// Project; empty for none.
    pub project: Box<str>,
    /// User or client.
    pub user_id: Box<str>,
    /// Resource; empty if there is none.
    pub resource: Box<str>,
    /// Names and values of attributes.
    pub attributes: Box<[(Box<str>, Box<str>)]>,
    /// Units to take.
    pub cost: u32,
}

/// A request by descriptors.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct RecordedDescriptors {
    /// Domain.
    pub domain: Box<str>,
    /// Descriptors, in order.
    pub descriptors: Box<[RecordedDescriptor]>,
}

/// One descriptor of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct RecordedDescriptor {
    /// Keys and values, from the top of the tree down.
    pub entries: Box<[(Box<str>, Box<str>)]>,
    /// Units to take; negative units are returned. From `-u32::MAX` to `u32::MAX`.
    pub hits: i64,
    /// A limit that the request brought along: units, and the window in microseconds.
    pub limit: Option<(u64, u64)>,
}

/// One request and its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimedRequest {
    /// Time at which the request arrived.
    pub at: Timestamp,
    /// Number of the request in the [`Dictionary`] of its source.
    pub request: u32,
    /// Whether the recorded answer was a refusal: status 429, or a denial of a recording.
    pub was_refused: bool,
}

/// Distinct requests, by number. A source adds requests as it reads, and begins a new generation
/// when they take more space than it may use. Numbers are those of one generation.
#[derive(Debug, Default)]
pub struct Dictionary {
    requests: Vec<RecordedRequest>,
    numbers: HashTable<u32>,
    hasher: DefaultHashBuilder,
    generation: u64,
    bytes: usize,
}

impl Dictionary {
    /// Returns the number of a request, which is added if it is new.
    ///
    /// # Panics
    ///
    /// If the generation has `u32::MAX` requests, which no machine of this day holds.
    pub fn number(&mut self, request: RecordedRequest) -> u32 {
        let hash = self.hasher.hash_one(&request);
        let is_same = |number: &u32| self.requests[*number as usize] == request;
        if let Some(number) = self.numbers.find(hash, is_same) {
            return *number;
        }
        let number = u32::try_from(self.requests.len()).expect("fewer than 2^32 requests");
        self.bytes += request.bytes();
        self.requests.push(request);
        let rehash = |number: &u32| self.hasher.hash_one(&self.requests[*number as usize]);
        self.numbers.insert_unique(hash, number, rehash);
        number
    }

    /// Returns a request of this generation.
    ///
    /// # Panics
    ///
    /// If there is no request of this number.
    pub fn request(&self, number: u32) -> &RecordedRequest {
        &self.requests[number as usize]
    }

    /// Returns how many requests this generation has.
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// Returns `true` if this generation has no requests yet.
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Returns about how many bytes the requests of this generation take.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the number of the generation. What was derived from numbers of another one is void.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Begins a new generation: forgets all requests.
    pub fn clear(&mut self) {
        self.requests.clear();
        self.numbers.clear();
        self.bytes = 0;
        self.generation += 1;
    }
}

impl From<&Request<'_>> for RecordedRequest {
    fn from(request: &Request<'_>) -> Self {
        let attributes = request.attributes().iter();
        Self::Fields(RecordedFields {
            project: request.project().into(),
            user_id: request.user_id().into(),
            resource: request.resource().into(),
            attributes: attributes.map(|(name, value)| (name.into(), value.into())).collect(),
            cost: request.cost().units().try_into().unwrap_or(u32::MAX),
        })
    }
}

impl From<&RequestDescriptor<'_>> for RecordedDescriptor {
    fn from(descriptor: &RequestDescriptor<'_>) -> Self {
        let entries = descriptor.entries.iter();
        let limit = descriptor.limit.as_ref();
        Self {
            entries: entries.map(|(key, value)| ((*key).into(), (*value).into())).collect(),
            hits: match descriptor.hits {
                HitsAddend::Take(cost) => cost.units().cast_signed(),
                HitsAddend::Credit(cost) => -cost.units().cast_signed(),
            },
            limit: limit.map(|limit| {
                let units = limit.grant().limit().map_or(0, Limit::units);
                (units, limit.window().as_micros())
            }),
        }
    }
}

impl RecordedRequest {
    /// Records a request with those of its descriptors that `keep` selects; `None` if there are none.
    pub fn from_descriptors(
        request: &DescriptorRequest<'_>,
        keep: impl Fn(&RequestDescriptor<'_>) -> bool,
    ) -> Option<Self> {
        let kept = request.descriptors().iter().filter(|descriptor| keep(descriptor));
        let descriptors: Box<[_]> = kept.map(RecordedDescriptor::from).collect();
        let domain = request.domain().into();
        (!descriptors.is_empty())
            .then_some(Self::Descriptors(RecordedDescriptors { domain, descriptors }))
    }

    /// Returns the project of the request; empty for none, as a request by descriptors has.
    pub fn project(&self) -> &str {
        match self {
            Self::Fields(fields) => &fields.project,
            Self::Descriptors(_) => "",
        }
    }

    /// Returns about how many bytes the request takes, with its place in a dictionary.
    pub fn bytes(&self) -> usize {
        let pairs = |pairs: &[(Box<str>, Box<str>)]| -> usize {
            pairs.iter().map(|(one, other)| one.len() + other.len() + 64).sum()
        };
        let texts = match self {
            Self::Fields(fields) => {
                let plain = [&fields.project, &fields.user_id, &fields.resource];
                plain.map(|text| text.len()).iter().sum::<usize>() + pairs(&fields.attributes)
            }
            Self::Descriptors(of) => {
                let descriptors = of.descriptors.iter().map(|one| pairs(&one.entries) + 64);
                of.domain.len() + descriptors.sum::<usize>()
            }
        };
        texts + size_of::<Self>() + 32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn by(user: &str) -> RecordedRequest {
        RecordedRequest::Fields(RecordedFields {
            user_id: user.into(),
            cost: 1,
            ..RecordedFields::default()
        })
    }

    #[test]
    fn equal_requests_have_one_number() {
        let mut dictionary = Dictionary::default();
        let numbers = ["a", "b", "a"].map(|user| dictionary.number(by(user)));
        assert_eq!(numbers, [0, 1, 0]);
        assert_eq!(dictionary.request(1), &by("b"));
        assert_eq!(dictionary.len(), 2);
        assert!(dictionary.bytes() >= 2);
    }

    #[test]
    fn a_new_generation_is_empty() {
        let mut dictionary = Dictionary::default();
        dictionary.number(by("a"));
        dictionary.clear();
        assert!(dictionary.is_empty());
        assert_eq!((dictionary.generation(), dictionary.bytes()), (1, 0));
        assert_eq!(dictionary.number(by("b")), 0);
    }
}
