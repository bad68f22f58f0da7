//! What a caller asks by descriptors, within its bounds.

use smallvec::SmallVec;
use thiserror::Error;

use crate::algorithm::{Cost, Limit, LimitError};
use crate::clock::Micros;
use crate::rules::Grant;

/// A valid request: a domain and at least one descriptor.
#[derive(Clone, Debug)]
pub struct DescriptorRequest<'a> {
    domain: &'a str,
    descriptors: SmallVec<[RequestDescriptor<'a>; 2]>,
}

/// One descriptor of a request.
#[derive(Clone, Debug)]
pub struct RequestDescriptor<'a> {
    /// Keys and values, from the outside in.
    pub entries: SmallVec<[(&'a str, &'a str); 4]>,
    /// Applies instead of the limit of a rule.
    pub limit: Option<LimitOverride>,
    /// What is to be taken.
    pub hits: HitsAddend,
}

/// What a descriptor takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HitsAddend {
    /// It takes so much; nothing is a look.
    Take(Cost),
    /// It gives so much back.
    Credit(Cost),
}

/// A limit that a request brings along.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitOverride {
    grant: Grant,
    window: Micros,
}

impl LimitOverride {
    /// So many per window; 0 grants nothing.
    ///
    /// # Errors
    ///
    /// [`LimitError`] as for any limit.
    pub fn new(units: u64, window: Micros) -> Result<Self, LimitError> {
        let grant = match units {
            0 => Grant::Banned,
            units => Grant::Limited(Limit::new(units, window)?),
        };
        Ok(Self { grant, window })
    }

    pub(super) fn grant(self) -> Grant {
        self.grant
    }

    pub(super) fn window(self) -> Micros {
        self.window
    }
}

impl<'a> DescriptorRequest<'a> {
    /// Most descriptors: the store decides them in one step.
    pub const MAX_DESCRIPTORS: usize = 64;
    /// Most bytes in a domain.
    pub const MAX_DOMAIN: usize = 1024;
    /// Most bytes in the keys and values of one descriptor: more than the headers that Envoy takes.
    pub const MAX_BYTES: usize = 64 * 1024;

    /// Checks what was asked against the bounds.
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
        let bytes = |asked: &RequestDescriptor<'_>| -> usize {
            asked.entries.iter().map(|(key, value)| key.len() + value.len()).sum()
        };
        match descriptors.iter().position(|asked| bytes(asked) > Self::MAX_BYTES) {
            Some(index) => Err(InvalidDescriptor::Entries { index }),
            None => Ok(Self { domain, descriptors }),
        }
    }

    /// Whose rules apply.
    pub fn domain(&self) -> &'a str {
        self.domain
    }

    /// At least one.
    pub fn descriptors(&self) -> &[RequestDescriptor<'a>] {
        &self.descriptors
    }
}

/// Which field is not valid, and what is. Never the value.
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
        /// Of the descriptor.
        index: usize,
    },
    /// Too large.
    #[error("descriptors[{index}].hits_addend must be 0 to {}", u32::MAX)]
    Hits {
        /// Of the descriptor.
        index: usize,
    },
    /// A unit that is not known.
    #[error("descriptors[{index}].limit.unit must be SECOND, MINUTE, HOUR, DAY, MONTH or YEAR")]
    Unit {
        /// Of the descriptor.
        index: usize,
    },
    /// A limit that can't be.
    #[error("descriptors[{index}].limit.requests_per_unit {error}")]
    Limit {
        /// Of the descriptor.
        index: usize,
        /// What is valid.
        error: LimitError,
    },
    /// Units for an algorithm that takes none back.
    #[error(
        "descriptors[{index}].is_negative_hits: the rule's sliding-window-log takes no units back"
    )]
    NegativeHits {
        /// Of the descriptor.
        index: usize,
    },
}

impl InvalidDescriptor {
    /// The field that is not valid.
    pub const fn field(self) -> &'static str {
        match self {
            Self::Domain => "domain",
            Self::Descriptors | Self::Entries { .. } => "descriptors",
            Self::Hits { .. } | Self::NegativeHits { .. } => "hits_addend",
            Self::Unit { .. } | Self::Limit { .. } => "limit",
        }
    }
}
