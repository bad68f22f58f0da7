//! Recorded traffic, and rules that are tried on it before anybody is refused.
//!
//! Access logs and lines of requests become [`TimedRequest`]s in the order of their times. A simulation decides
//! each of them with the engine of the service, in memory and with a clock that is moved.
//!
//! This crate reads what it is given and computes. It knows no command line and no configuration
//! files: the service brings both.

pub mod chart;
mod page;
mod request;
pub mod simulation;
pub mod traffic;

pub use page::SimulationPage;
pub use request::{
    RecordedDescriptor, RecordedDescriptors, RecordedFields, RecordedRequest, TimedRequest,
    descriptor_request, with_request,
};
