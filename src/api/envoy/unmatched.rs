//! Requests that no rule decides, and the projects of requests.
//!
//! A proxy may let pass what fails. So what the client of a proxy can cause by the values that it sends is a
//! denial here, and no error. All of it is counted, and logged with its domain.

use rlaas_limiter::{CheckError, DescriptorVerdict};
use rlaas_telemetry::log;
use rlaas_telemetry::metrics::OutcomeLabels;
use tonic::Status;

use super::{MissingEntry, Service};
use crate::rules::descriptors::{DescriptorRequest, InvalidDescriptor, RequestDescriptor};

/// Stands for an empty id of a project. No project has this id.
const NO_PROJECT: &str = "-";

impl Service {
    /// Finds the project of a request: that of its domain, else the one that its entries name. The caller
    /// has the role `check` for all projects.
    ///
    /// # Errors
    ///
    /// [`CheckError::Descriptor`] for a request that is not valid, [`CheckError::NoRule`] for one that is denied
    /// because its entries name no project.
    pub(super) fn in_project<'a>(
        &'a self,
        parsed: Result<DescriptorRequest<'a>, InvalidDescriptor>,
    ) -> Result<DescriptorRequest<'a>, CheckError> {
        let request = parsed?;
        if let Some(project) = self.settings.projects.get(request.domain()) {
            return Ok(request.in_project(project.as_str()));
        }
        let Some(name) = &self.settings.project_entry else { return Ok(request) };
        let mut project = None;
        for (index, descriptor) in request.descriptors().iter().enumerate() {
            for (_, value) in descriptor.entries.iter().filter(|(key, _)| key == name) {
                if project.is_some_and(|other| other != *value) {
                    return Err(InvalidDescriptor::OtherProject { index }.into());
                }
                project = Some(*value);
            }
        }
        let is_denied = project.is_none() && self.settings.missing_entry == MissingEntry::Deny;
        if is_denied && !self.limiter.snapshot().rules.descriptors().has_domain(request.domain()) {
            self.count_unmatched(request.domain(), "no_entry", false);
            return Err(CheckError::NoRule);
        }
        // An empty one is none of any, but not the absence of one.
        let named = |project: &'a str| if project.is_empty() { NO_PROJECT } else { project };
        Ok(request.in_project(project.map_or("", named)))
    }

    /// Counts a decided request that no rule has decided as it asks. Denies one that failed, if
    /// [`Service::denied`] does.
    pub(super) fn without_rule(
        &self,
        request: &DescriptorRequest<'_>,
        decided: Result<DescriptorVerdict, CheckError>,
    ) -> Result<DescriptorVerdict, CheckError> {
        let refused = || DescriptorVerdict::refused(request.descriptors().len());
        let verdict =
            decided.or_else(|error| self.denied(request.domain(), error).map(|()| refused()))?;
        if let Some(reason) = self.unmatched_reason(request, &verdict) {
            self.count_unmatched(request.domain(), reason, verdict.is_allowed());
        }
        Ok(verdict)
    }

    /// Returns the verdict on a request of a domain, with this number of descriptors, that failed before it was
    /// decided, or its status.
    pub(super) fn deny(
        &self,
        domain: &str,
        descriptors: usize,
        error: CheckError,
    ) -> Result<DescriptorVerdict, Status> {
        self.denied(domain, error).map_err(|error| self.undecided(&error))?;
        Ok(DescriptorVerdict::refused(descriptors))
    }

    /// Denies a request that no rule of its project decides, that is in no project though its entries name
    /// one, or that is not valid by the values that a client has sent. While it is not known which projects
    /// there are that is a failure, as if the store were away.
    fn denied(&self, domain: &str, error: CheckError) -> Result<(), CheckError> {
        let is_of_entry = || !self.settings.projects.contains_key(domain);
        match error {
            CheckError::NoRule => {}
            CheckError::UnknownProject if self.api_keys.are_projects_known() && is_of_entry() => {
                self.count_unmatched(domain, "unknown_project", false);
            }
            CheckError::Descriptor(invalid) if invalid.is_of_values() => {
                drop(self.count_rejected(invalid));
            }
            CheckError::LongKeys | CheckError::ManyHolders => {
                drop(self.rejected("descriptors", error));
            }
            error => return Err(error),
        }
        Ok(())
    }

    /// Returns the reason why no rule has decided a request as it asks.
    fn unmatched_reason(
        &self,
        request: &DescriptorRequest<'_>,
        verdict: &DescriptorVerdict,
    ) -> Option<&'static str> {
        if verdict.is_refused {
            return None;
        }
        if !request.project().is_empty() {
            let answered = verdict.answers.iter().zip(request.descriptors());
            let is_met = |(answer, own): (&Option<_>, &RequestDescriptor<'_>)| {
                own.limit.is_none() || answer.is_some()
            };
            let counts_all = !verdict.ignores_own_limit && answered.into_iter().all(is_met);
            return (!counts_all).then_some("own_limit");
        }
        if verdict.answers.iter().any(Option::is_some) {
            return None;
        }
        let is_known = self.limiter.snapshot().rules.descriptors().has_domain(request.domain());
        let of_unknown = if self.settings.project_entry.is_some() { "no_entry" } else { "domain" };
        Some(if is_known { "descriptor" } else { of_unknown })
    }

    fn count_unmatched(&self, domain: &str, reason: &'static str, is_allowed: bool) {
        let outcome = if is_allowed { "allowed" } else { "denied" };
        self.metrics.unmatched.get_or_create(&OutcomeLabels { outcome, reason }).inc();
        log::warn_unmatched(domain, reason, outcome);
    }
}
