//! Requests by descriptors, checked against their bounds.

use smallvec::SmallVec;
use thiserror::Error;

use crate::algorithm::{Cost, Limit, LimitError, Window};
use crate::calendar::{Calendar, CalendarUnit};
use crate::clock::Micros;
use crate::rules::{Attributes, Grant, Request};

/// A valid request: a domain and at least one descriptor.
#[derive(Clone, Debug)]
pub struct DescriptorRequest<'a> {
    domain: &'a str,
    /// The project; empty for none.
    project: &'a str,
    descriptors: SmallVec<[RequestDescriptor<'a>; 2]>,
}

/// One descriptor of a request.
#[derive(Clone, Debug)]
pub struct RequestDescriptor<'a> {
    /// Keys and values, from the top of the tree down.
    pub entries: SmallVec<[(&'a str, &'a str); 4]>,
    /// Replaces the limit of the rule.
    pub limit: Option<LimitOverride>,
    /// Units to take or to return.
    pub hits: HitsAddend,
}

impl RequestDescriptor<'_> {
    /// Returns the descriptor as the rules of a project meet it: a request whose attributes are its entries.
    /// The entries `user_id` and `resource` are the user and the resource, too.
    pub fn request<'r>(&'r self, project: &'r str) -> Request<'r> {
        let cost = match self.hits {
            HitsAddend::Take(cost) | HitsAddend::Credit(cost) => cost,
        };
        Request::of_entries(&self.entries, cost, self.limit.as_ref()).in_project(project)
    }
}

/// The units that a descriptor takes or returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HitsAddend {
    /// Units to take. 0 reads the state.
    Take(Cost),
    /// Units to return.
    Credit(Cost),
}

/// A limit that is part of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitOverride {
    grant: Grant,
    window: Micros,
}

impl LimitOverride {
    const DAY: Micros = Micros::from_secs(86_400);
    /// Length of a month.
    pub const MONTH: Micros = Micros::from_secs(30 * 86_400);

    /// Creates a limit of `units` per window; 0 denies everything.
    ///
    /// # Errors
    ///
    /// [`LimitError`] as [`Limit::new`].
    pub fn new(units: u64, window: Micros) -> Result<Self, LimitError> {
        let grant = match units {
            0 => Grant::Banned,
            units => Grant::Limited(Limit::new(units, window)?),
        };
        Ok(Self { grant, window })
    }

    /// Returns the units, as a grant.
    pub fn grant(self) -> Grant {
        self.grant
    }

    /// Returns the grant and its window where months are those of a calendar.
    pub(super) fn by_month(self, month: Window) -> (Grant, Window) {
        let units = self.grant.limit().filter(|_| self.window == Self::MONTH).map(Limit::units);
        let limit = units.and_then(|units| Limit::new(units, month).ok());
        match limit {
            Some(limit) => (Grant::Limited(limit), month),
            None => (self.grant, self.window.into()),
        }
    }

    /// Returns the units per window of a rule; `None` if the limit has another window.
    pub(crate) fn units_in(&self, window: Window) -> Option<u64> {
        let is_same = match window.calendar().map(Calendar::unit) {
            None => window.length() == self.window,
            Some(CalendarUnit::Day) => self.window == Self::DAY,
            Some(CalendarUnit::Month) => self.window == Self::MONTH,
            Some(_) => false,
        };
        is_same.then(|| self.grant.limit().map_or(0, Limit::units))
    }

    /// Returns the window; that of a limit of 0 too.
    pub fn window(self) -> Micros {
        self.window
    }
}

impl<'a> DescriptorRequest<'a> {
    /// Most descriptors in a request. The store decides all of them in one step.
    pub const MAX_DESCRIPTORS: usize = 64;
    /// Most rules that decide a request in a project, over all descriptors.
    pub const MAX_HITS: usize = 512;
    /// Most bytes in a domain.
    pub const MAX_DOMAIN: usize = 1024;
    /// Most bytes in the keys and values of one descriptor: more than Envoy accepts in headers by
    /// default.
    pub const MAX_BYTES: usize = 64 * 1024;

    /// Checks a request against the bounds.
    ///
    /// # Errors
    ///
    /// [`InvalidDescriptor`] for the first field that is out of bounds.
    pub fn new(
        domain: &'a str,
        descriptors: SmallVec<[RequestDescriptor<'a>; 2]>,
    ) -> Result<Self, InvalidDescriptor> {
        if !(1..=Self::MAX_DOMAIN).contains(&domain.len()) {
            return Err(InvalidDescriptor::Domain);
        }
        if !(1..=Self::MAX_DESCRIPTORS).contains(&descriptors.len()) {
            return Err(InvalidDescriptor::Descriptors);
        }
        let bytes = |descriptor: &RequestDescriptor<'_>| -> usize {
            descriptor.entries.iter().map(|(key, value)| key.len() + value.len()).sum()
        };
        match descriptors.iter().position(|descriptor| bytes(descriptor) > Self::MAX_BYTES) {
            Some(index) => Err(InvalidDescriptor::Entries { index }),
            None => Ok(Self { domain, project: "", descriptors }),
        }
    }

    /// Returns this request in a project, whose rules alone decide it: each descriptor as
    /// [`RequestDescriptor::request`] says, without entries that have the name of an attribute of an API key. An
    /// empty one is none.
    #[must_use]
    pub fn in_project(mut self, project: &'a str) -> Self {
        for descriptor in self.descriptors.iter_mut().filter(|_| !project.is_empty()) {
            descriptor.entries.retain(|(name, _)| !Attributes::is_of_key(name));
        }
        Self { project, ..self }
    }

    /// Returns the project; empty for none.
    pub fn project(&self) -> &'a str {
        self.project
    }

    /// Returns the domain: 1 to 1024 bytes.
    pub fn domain(&self) -> &'a str {
        self.domain
    }

    /// Returns the descriptors: 1 to 64.
    pub fn descriptors(&self) -> &[RequestDescriptor<'a>] {
        &self.descriptors
    }
}

/// The field that is not valid. The text names the field and its bounds, never the value.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum InvalidDescriptor {
    /// Empty or too long.
    #[error("domain must be 1 to {} bytes", DescriptorRequest::MAX_DOMAIN)]
    Domain,
    /// None or too many.
    #[error("descriptors must have 1 to {} entries", DescriptorRequest::MAX_DESCRIPTORS)]
    Descriptors,
    /// Too long.
    #[error(
        "descriptors[{index}].entries must have at most {} bytes of keys and values",
        DescriptorRequest::MAX_BYTES
    )]
    Entries {
        /// Position of the descriptor.
        index: usize,
    },
    /// Too large.
    #[error("descriptors[{index}].hits_addend must be 0 to {}", u32::MAX)]
    Hits {
        /// Position of the descriptor.
        index: usize,
    },
    /// An unknown unit, or too many of it.
    #[error(
        "descriptors[{index}].limit.unit must be SECOND, MINUTE, HOUR, DAY, MONTH or YEAR, and \
         unit_multiplier at least 1 and make at most 366 days of it"
    )]
    Unit {
        /// Position of the descriptor.
        index: usize,
    },
    /// A limit that is not valid.
    #[error("descriptors[{index}].limit.requests_per_unit {error}")]
    Limit {
        /// Position of the descriptor.
        index: usize,
        /// The reason.
        error: LimitError,
    },
    /// Too many rules of a project.
    #[error(
        "descriptors[{index}]: with the others must meet at most {} rules",
        DescriptorRequest::MAX_HITS
    )]
    Rules {
        /// Position of the descriptor.
        index: usize,
    },
    /// Descriptors that name different projects.
    #[error("descriptors[{index}].entries must name the same project as the others")]
    OtherProject {
        /// Position of the descriptor.
        index: usize,
    },
    /// Negative hits for an algorithm that does not support them.
    #[error(
        "descriptors[{index}].is_negative_hits must be false: the rule's algorithm is \
         sliding-window-log"
    )]
    NegativeHits {
        /// Position of the descriptor.
        index: usize,
    },
}

impl InvalidDescriptor {
    /// Returns a name for the field, coarser than in the text: the reason in logs and metrics.
    pub const fn field(self) -> &'static str {
        match self {
            Self::Domain => "domain",
            Self::Descriptors
            | Self::Entries { .. }
            | Self::Rules { .. }
            | Self::OtherProject { .. } => "descriptors",
            Self::Hits { .. } | Self::NegativeHits { .. } => "hits_addend",
            Self::Unit { .. } | Self::Limit { .. } => "limit",
        }
    }

    /// Returns `true` if the values of a request cause it, which a client of a proxy may choose: an error
    /// would let the request pass.
    pub const fn is_of_values(self) -> bool {
        matches!(
            self,
            Self::Entries { .. }
                | Self::Hits { .. }
                | Self::Rules { .. }
                | Self::OtherProject { .. }
        )
    }
}
