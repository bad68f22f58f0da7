//! The explanation of a request that was not decided as expected: that of `rlaas explain`, at the
//! moment before the request.

use rlaas_limiter::Limiter;
use rlaas_proto::envoy::service::ratelimit::v3::RateLimitRequest;
use rlaas_proto::ratelimit::admin::v1::{
    Descriptor, DescriptorEntry, ExplainDescriptorsRequest, ExplainRequest,
};
use tokio::runtime::Runtime;

use super::request::StepRequest;
use crate::clock::Deadline;
use rlaas_admin as service;
use rlaas_cli::printable;
use rlaas_cli::{check_lines, descriptor_lines};

/// Explains a request. Counts nothing.
pub(super) fn explain(limiter: &Limiter, request: &StepRequest, runtime: &Runtime) -> String {
    match request {
        StepRequest::Check(request) => {
            let call =
                ExplainRequest { request: Some(request.clone()), ..ExplainRequest::default() };
            match runtime.block_on(service::explain(limiter, call, Deadline::NEVER)) {
                Ok(explained) => check_lines(&explained, request),
                Err(status) => without_explanation(status.message()),
            }
        }
        StepRequest::Descriptors(request) => {
            if has_more_than_entries(request) {
                let why = "limits that requests bring along, and hits that they give back, are not \
                           explained";
                return without_explanation(why);
            }
            let call = question(request);
            let explained = service::explain_descriptors(limiter, call.clone(), Deadline::NEVER);
            match runtime.block_on(explained) {
                Ok(explained) => descriptor_lines(&explained, &call),
                Err(status) => without_explanation(status.message()),
            }
        }
    }
}

fn without_explanation(why: &str) -> String {
    format!("no explanation: {}\n", printable(why))
}

fn has_more_than_entries(request: &RateLimitRequest) -> bool {
    request
        .descriptors
        .iter()
        .any(|descriptor| descriptor.limit.is_some() || descriptor.is_negative_hits)
}

fn question(request: &RateLimitRequest) -> ExplainDescriptorsRequest {
    let hits = u64::from(request.hits_addend.max(1));
    let descriptors = request.descriptors.iter().map(|descriptor| {
        let entries = descriptor.entries.iter();
        let entries = entries
            .map(|entry| DescriptorEntry { key: entry.key.clone(), value: entry.value.clone() });
        let hits_addend = Some(descriptor.hits_addend.unwrap_or(hits));
        Descriptor { entries: entries.collect(), hits_addend }
    });
    let descriptors = descriptors.collect();
    ExplainDescriptorsRequest { domain: request.domain.clone(), descriptors }
}
