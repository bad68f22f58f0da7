//! A conflict of catalogues: its end, and keys that are revoked while it lasts.

use std::time::Duration;

use super::change::{PlannedChange, outcome_error};
use super::{ProjectAdministrator, ProjectCall, ProjectError, WriteError};
use crate::admin::change::{MAX_OUTCOME_TIME, check_bounds};
use crate::admin::{AdminError, Intent, MAX_TIME};
use crate::clock::Deadline;
use crate::projects::registry::{CatalogueSource, ChangeError};
use crate::projects::{ApiKey, ApiKeyError, ProjectId};

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
        let summary = format!("restore catalogue {expected} from {side}");
        let pending =
            self.administrator.audit().begin(intent(call, "", "", summary), deadline).await;
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

    /// Revokes a key while catalogues conflict. A change that has begun ends although the caller goes
    /// away.
    pub(super) async fn revoke_key_aside(
        &self,
        call: &ProjectCall,
        id: &ProjectId,
        key: &str,
    ) -> Result<ApiKey, ProjectError> {
        let (this, owned, id, key) = (self.clone(), call.clone(), id.clone(), key.to_owned());
        let made = Box::pin(async move {
            this.key(&id, &key)?;
            let summary = PlannedChange::revocation(&id, &key).summary;
            let deadline = owned.deadline.or_within(MAX_TIME);
            let intent = intent(&owned, id.as_str(), &key, summary);
            let pending = this.administrator.audit().begin(intent, deadline).await;
            let pending = pending.map_err(AdminError::from)?;
            let revoked = this.registry.revoke_aside(&id, &key, Deadline::within(MAX_TIME)).await;
            let revoked = revoked.map_err(|error: ChangeError<ApiKeyError>| match error {
                ChangeError::Refused(error) => ProjectError::Key(error),
                ChangeError::Unavailable(error) => ProjectError::Write(WriteError::Store(error)),
                _ => ProjectError::Write(WriteError::Conflict),
            });
            let deadline = Deadline::within(MAX_OUTCOME_TIME);
            match &revoked {
                Ok(_) => pending.done_as_revision(this.catalogue_revision(), deadline).await,
                Err(error) => pending.failed(outcome_error(error), Vec::new(), deadline).await,
            }
            revoked
        });
        self.administrator.shared.changes.run(made, call.deadline).await
    }
}

fn intent<'a>(
    call: &'a ProjectCall,
    project_id: &'a str,
    target: &'a str,
    summary: String,
) -> Intent<'a> {
    Intent {
        actor: &call.actor,
        action: call.action,
        project_id,
        target,
        summary,
        reason: &call.reason,
        request_id: &call.request_id,
        before: Vec::new(),
    }
}
