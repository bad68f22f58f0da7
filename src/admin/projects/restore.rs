//! The end of a conflict of catalogues.

use std::time::Duration;

use super::change::outcome_error;
use super::{ProjectAdministrator, ProjectCall, ProjectError};
use crate::admin::change::{MAX_OUTCOME_TIME, check_bounds};
use crate::admin::{AdminError, Intent, MAX_TIME};
use crate::clock::Deadline;
use crate::projects::registry::CatalogueSource;

/// Longest time of a restore. 10,000 projects with 10 rules each take some seconds.
const MAX_RESTORE_TIME: Duration = Duration::from_mins(2);

impl ProjectAdministrator {
    /// Ends a conflict of catalogues: keeps that of one side, whose revision is `expected`. Returns the
    /// revision of the restored catalogue.
    ///
    /// # Errors
    ///
    /// [`ProjectError`].
    pub async fn restore_catalogue(
        &self,
        call: &ProjectCall,
        from: CatalogueSource,
        expected: u64,
    ) -> Result<u64, ProjectError> {
        check_bounds(&call.reason, &call.request_id)?;
        let (this, owned) = (self.clone(), call.clone());
        let made = Box::pin(async move { this.restore(&owned, from, expected).await });
        self.administrator.shared.changes.run(made, call.deadline).await
    }

    async fn restore(
        &self,
        call: &ProjectCall,
        from: CatalogueSource,
        expected: u64,
    ) -> Result<u64, ProjectError> {
        let deadline = call.deadline.or_within(MAX_TIME);
        let checked = self.registry.check_restore(from, expected, deadline).await;
        checked.map_err(ProjectError::Restore)?;
        let side = match from {
            CatalogueSource::Instance => "instance",
            CatalogueSource::Store => "store",
        };
        let intent = Intent {
            actor: &call.actor,
            action: call.action,
            project_id: "",
            target: "",
            summary: format!("restore catalogue {expected} from {side}"),
            reason: &call.reason,
            request_id: &call.request_id,
            before: Vec::new(),
        };
        let pending = self.administrator.audit().begin(intent, deadline).await;
        let pending = pending.map_err(AdminError::from)?;
        let deadline = Deadline::within(MAX_RESTORE_TIME);
        let restored = self.registry.restore_catalogue(from, expected, deadline).await;
        let restored = restored.map_err(ProjectError::Restore);
        let deadline = Deadline::within(MAX_OUTCOME_TIME);
        match &restored {
            Ok(revision) => pending.done_as_revision(*revision, deadline).await,
            Err(error) => pending.failed(outcome_error(error), Vec::new(), deadline).await,
        }
        restored
    }
}
