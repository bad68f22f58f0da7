//! Requests by user, resource and attributes, checked against their bounds.

use std::collections::HashMap;
use std::num::NonZeroU32;

use thiserror::Error;

use super::descriptors::LimitOverride;
use super::{Attributes, Costs, Violation};
use crate::algorithm::Cost;

/// A valid request: all fields are within the bounds below.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    user_id: &'a str,
    resource: &'a str,
    attributes: Attributes<'a>,
    cost: Cost,
    costs: Costs<'a>,
    /// The fewest units that it takes; `None` if it takes its cost or nothing.
    at_least: Option<NonZeroU32>,
    dry_run: bool,
    /// The request id.
    id: Option<&'a str>,
    /// The project; empty for none.
    project: &'a str,
    /// The limit of the descriptor that the request is.
    limit: Option<&'a LimitOverride>,
}

/// The fields of a request as the caller sent them, not checked yet.
#[derive(Clone, Copy, Debug)]
pub struct RequestFields<'a> {
    /// User or client that makes the request.
    pub user_id: &'a str,
    /// Resource that is requested.
    pub resource: &'a str,
    /// Further properties that rules can use.
    pub attributes: &'a HashMap<String, String>,
    /// Units to take; `None` means 1.
    pub cost: Option<u64>,
    /// Whether to decide without taking the cost.
    pub dry_run: bool,
}

impl<'a> Request<'a> {
    /// Most bytes in a user id; it has at least one.
    pub const MAX_USER_ID: usize = 1024;
    /// Most bytes in a resource.
    pub const MAX_RESOURCE: usize = 1024;
    /// Most attributes.
    pub const MAX_ATTRIBUTES: usize = 32;
    /// Most attributes of an API key, beside those.
    pub const MAX_KEY_ATTRIBUTES: usize = 16;
    /// Most bytes in an attribute's name; it has at least one. Those of API keys have `key.` before it.
    pub const MAX_ATTRIBUTE_NAME: usize = 64;
    /// Most bytes in an attribute's value.
    pub const MAX_ATTRIBUTE_VALUE: usize = 1024;
    /// Most bytes in a request id; it has at least one.
    pub const MAX_REQUEST_ID: usize = 64;
    /// Most costs of single rules.
    pub const MAX_COSTS: usize = 64;

    /// Checks the fields against the bounds.
    ///
    /// # Errors
    ///
    /// [`InvalidRequest`] for the first field that is out of bounds.
    pub fn new(fields: RequestFields<'a>) -> Result<Self, InvalidRequest> {
        let RequestFields { user_id, resource, attributes, cost, dry_run } = fields;
        let given = Self::user(user_id).resource(resource).attributes(attributes);
        let request = Self { dry_run, ..given.0 };
        request.check_bounds()?;
        let cost = match cost {
            None => Cost::ONE,
            Some(units) => Cost::new(u32::try_from(units).map_err(|_| InvalidRequest::Cost)?),
        };
        Ok(Self { cost, ..request })
    }

    /// Starts building a request by this user for one unit.
    pub const fn user(user_id: &'a str) -> RequestBuilder<'a> {
        let (resource, attributes, costs) = ("", Attributes::NONE, Costs::NONE);
        let (cost, at_least, dry_run, id) = (Cost::ONE, None, false, None);
        let (project, limit) = ("", None);
        RequestBuilder(Self {
            user_id,
            resource,
            attributes,
            cost,
            costs,
            at_least,
            dry_run,
            id,
            project,
            limit,
        })
    }

    /// Returns this request with a request id: for some time, the same request with the same id
    /// takes its units once. An empty id is none.
    ///
    /// The id must be made by the trusted caller and be unique for each user. An id that is copied
    /// from the caller's own clients lets these pass without paying.
    ///
    /// # Errors
    ///
    /// [`InvalidRequest::RequestId`] if the id is too long.
    pub fn with_request_id(self, request_id: &'a str) -> Result<Self, InvalidRequest> {
        if request_id.len() > Self::MAX_REQUEST_ID {
            return Err(InvalidRequest::RequestId);
        }
        Ok(Self { id: Some(request_id).filter(|id| !id.is_empty()), ..self })
    }

    /// Returns this request with units to take from single rules, by their names: pairs or a map. They
    /// come before a rule's own cost, and before that of the request.
    ///
    /// # Errors
    ///
    /// [`InvalidRequest::Costs`] if there are too many, or one is too large.
    pub fn with_costs(self, costs: impl Into<Costs<'a>>) -> Result<Self, InvalidRequest> {
        let costs = costs.into();
        let is_too_large = |(_, units): (&str, u64)| units > u32::MAX.into();
        if costs.len() > Self::MAX_COSTS || costs.iter().any(is_too_large) {
            return Err(InvalidRequest::Costs);
        }
        Ok(Self { costs, ..self })
    }

    /// Returns this request as one that takes what is there: any number of units from this one to its cost will
    /// do, over all rules in one step. 0 takes the cost or nothing. Rules with a cost of their own, or one by
    /// [`Request::with_costs`], take that or nothing.
    ///
    /// # Errors
    ///
    /// [`InvalidRequest::AtLeast`] if it is above the cost.
    pub fn with_at_least(self, units: u64) -> Result<Self, InvalidRequest> {
        if units > self.cost.units() {
            return Err(InvalidRequest::AtLeast);
        }
        let units = u32::try_from(units).map_err(|_| InvalidRequest::AtLeast)?;
        Ok(Self { at_least: NonZeroU32::new(units), ..self })
    }

    /// Returns this request at the cost of a settlement, where it says one: what its request id stands for.
    #[must_use]
    pub fn at_actual_cost(self, actual: Option<Cost>, actuals: Costs<'a>) -> Self {
        if actual.is_none() && actuals.is_empty() {
            return self;
        }
        Self { cost: actual.unwrap_or(self.cost), costs: actuals, ..self }
    }

    /// Returns this request in a project, whose rules alone decide it. An empty one is none.
    #[must_use]
    pub const fn in_project(self, project: &'a str) -> Self {
        Self { project, ..self }
    }

    /// Creates the request of a descriptor, of which each entry is an attribute. Their bounds are those
    /// of descriptors. A user or resource that is no entry is empty.
    pub(super) fn of_entries(
        entries: &'a [(&'a str, &'a str)],
        cost: Cost,
        limit: Option<&'a LimitOverride>,
    ) -> Self {
        let attributes = Attributes::Pairs(entries);
        let part = |name: &str| attributes.get(name).unwrap_or_default();
        Self {
            user_id: part("user_id"),
            resource: part("resource"),
            attributes,
            cost,
            costs: Costs::NONE,
            at_least: None,
            dry_run: false,
            id: None,
            project: "",
            limit,
        }
    }

    /// Creates a request for one unit with the parts of a key. A part that the key does not have is
    /// empty.
    ///
    /// # Errors
    ///
    /// [`InvalidRequest`] for the first part that is out of bounds.
    pub(crate) fn for_key(
        user_id: Option<&'a str>,
        resource: Option<&'a str>,
        attributes: Attributes<'a>,
    ) -> Result<Self, InvalidRequest> {
        let resource = resource.unwrap_or_default();
        let given = Self::user(user_id.unwrap_or("?")).resource(resource).attributes(attributes);
        let request = given.build()?;
        Ok(Self { user_id: user_id.unwrap_or_default(), ..request })
    }

    fn check_bounds(&self) -> Result<(), InvalidRequest> {
        if !(1..=Self::MAX_USER_ID).contains(&self.user_id.len()) {
            return Err(InvalidRequest::UserId);
        }
        if self.resource.len() > Self::MAX_RESOURCE {
            return Err(InvalidRequest::Resource);
        }
        let of_key =
            || self.attributes.iter().filter(|(name, _)| Attributes::is_of_key(name)).count();
        let (len, most) = (self.attributes.len(), Self::MAX_ATTRIBUTES);
        if len > most && len - of_key().min(Self::MAX_KEY_ATTRIBUTES) > most {
            return Err(InvalidRequest::Attributes);
        }
        if self.id.is_some_and(|id| id.len() > Self::MAX_REQUEST_ID) {
            return Err(InvalidRequest::RequestId);
        }
        for (name, value) in self.attributes.iter() {
            let prefix = if Attributes::is_of_key(name) { Attributes::OF_KEY.len() } else { 0 };
            if !(1..=Self::MAX_ATTRIBUTE_NAME).contains(&(name.len() - prefix)) {
                return Err(InvalidRequest::AttributeName);
            }
            if value.len() > Self::MAX_ATTRIBUTE_VALUE {
                return Err(InvalidRequest::AttributeValue);
            }
        }
        Ok(())
    }

    /// Returns the user: 1 to 1024 bytes.
    pub const fn user_id(&self) -> &'a str {
        self.user_id
    }

    /// Returns the resource: up to 1024 bytes.
    pub const fn resource(&self) -> &'a str {
        self.resource
    }

    /// Returns the attributes.
    pub const fn attributes(&self) -> Attributes<'a> {
        self.attributes
    }

    /// Returns the units to take, aside from those of single rules.
    pub const fn cost(&self) -> Cost {
        self.cost
    }

    /// Returns the units to take from single rules.
    pub const fn costs(&self) -> Costs<'a> {
        self.costs
    }

    /// Returns the limit of the descriptor that the request is.
    pub(crate) const fn limit(&self) -> Option<&'a LimitOverride> {
        self.limit
    }

    /// Returns the fewest units that the request takes; `None` if it takes its cost or nothing.
    #[inline]
    pub const fn at_least(&self) -> Option<NonZeroU32> {
        self.at_least
    }

    /// Returns `true` if the request takes nothing from any rule.
    pub fn takes_nothing(&self) -> bool {
        let mut costs = self.costs.iter();
        self.dry_run || self.cost == Cost::NONE && costs.all(|(_, units)| units == 0)
    }

    /// Returns `true` if the request only looks: it is a dry run, or has no cost and names no rule. Such a request
    /// is not counted as one.
    pub fn looks(&self) -> bool {
        self.dry_run || self.cost == Cost::NONE && self.costs.is_empty()
    }

    /// Returns `true` if the request takes nothing.
    pub const fn dry_run(&self) -> bool {
        self.dry_run
    }

    /// Returns the request id: 1 to 64 bytes.
    pub const fn request_id(&self) -> Option<&'a str> {
        self.id
    }

    /// Returns the project; empty for none.
    #[inline]
    pub const fn project(&self) -> &'a str {
        self.project
    }
}

/// Builds a [`Request`].
///
/// ```
/// use rlaas_core::rules::{InvalidRequest, Request};
///
/// let request = Request::user("alice").resource("/reports").attributes(&[("plan", "pro")]).cost(3);
/// assert_eq!(request.build()?.attributes().get("plan"), Some("pro"));
/// assert_eq!(Request::user("").build().err(), Some(InvalidRequest::UserId));
/// # Ok::<(), InvalidRequest>(())
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct RequestBuilder<'a>(Request<'a>);

impl<'a> RequestBuilder<'a> {
    /// Sets the resource.
    pub const fn resource(self, resource: &'a str) -> Self {
        Self(Request { resource, ..self.0 })
    }

    /// Sets the attributes: pairs or a map.
    pub fn attributes(self, attributes: impl Into<Attributes<'a>>) -> Self {
        Self(Request { attributes: attributes.into(), ..self.0 })
    }

    /// Sets the units to take.
    pub const fn cost(self, units: u32) -> Self {
        Self(Request { cost: Cost::new(units), ..self.0 })
    }

    /// Decides without taking the cost.
    pub const fn dry_run(self) -> Self {
        Self(Request { dry_run: true, ..self.0 })
    }

    /// Sets the request id: see [`Request::with_request_id`]. An empty id is none.
    pub const fn request_id(self, request_id: &'a str) -> Self {
        let id = if request_id.is_empty() { None } else { Some(request_id) };
        Self(Request { id, ..self.0 })
    }

    /// Sets the project: see [`Request::in_project`].
    pub const fn in_project(self, project: &'a str) -> Self {
        Self(self.0.in_project(project))
    }

    /// Checks the request against the bounds.
    ///
    /// # Errors
    ///
    /// [`InvalidRequest`] for the first field that is out of bounds.
    pub fn build(self) -> Result<Request<'a>, InvalidRequest> {
        self.0.check_bounds()?;
        Ok(self.0)
    }
}

/// The field that is out of bounds. The text names the field and its bounds, never the value.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("{}", self.violation())]
pub enum InvalidRequest {
    /// Empty or too long.
    UserId,
    /// Too long.
    Resource,
    /// Too many.
    Attributes,
    /// Empty or too long.
    AttributeName,
    /// Too long.
    AttributeValue,
    /// Too large.
    Cost,
    /// Too many, or too large.
    Costs,
    /// Above the cost.
    AtLeast,
    /// Too long.
    RequestId,
}

impl InvalidRequest {
    /// Returns the field with its bounds.
    pub fn violation(self) -> Violation {
        let (path, must) = match self {
            Self::UserId => ("user_id", format!("must be 1 to {} bytes", Request::MAX_USER_ID)),
            Self::Resource => {
                ("resource", format!("must be at most {} bytes", Request::MAX_RESOURCE))
            }
            Self::Attributes => {
                ("attributes", format!("must have at most {} entries", Request::MAX_ATTRIBUTES))
            }
            Self::AttributeName => {
                let most = Request::MAX_ATTRIBUTE_NAME;
                ("attributes", format!("must have 1 to {most} bytes per name"))
            }
            Self::AttributeValue => {
                let most = Request::MAX_ATTRIBUTE_VALUE;
                ("attributes", format!("must have at most {most} bytes per value"))
            }
            Self::Cost => ("cost", format!("must be 0 to {}", u32::MAX)),
            Self::Costs => {
                let most = Request::MAX_COSTS;
                ("costs", format!("must have at most {most} entries of 0 to {}", u32::MAX))
            }
            Self::AtLeast => ("at_least", "must be 0 to the cost".to_owned()),
            Self::RequestId => {
                ("request_id", format!("must be at most {} bytes", Request::MAX_REQUEST_ID))
            }
        };
        Violation { path, must: must.into() }
    }
}
