//! What a service has beside decisions, if it was built with the feature `admin`.

use std::fmt::Debug;
use std::sync::Arc;

use axum::Router;
use futures_util::future::BoxFuture;
use rlaas_auth::Auth;
use rlaas_limiter::Limiter;
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tonic::service::RoutesBuilder;

/// The administration of a service: services, routes and pages, and work in the background. Each worker has its
/// own handle of the limiter.
pub trait ServedAdministration: Debug + Send + Sync {
    /// Adds the services of gRPC.
    fn add_services(&self, limiter: &Limiter, routes: &mut RoutesBuilder);

    /// Returns the routes over HTTP.
    fn http_routes(&self, limiter: &Limiter) -> Router;

    /// Returns the pages. They call `services` in this process, and long work of theirs runs on `background`.
    fn pages(
        &self,
        limiter: &Limiter,
        services: Router,
        auth: Arc<Auth>,
        background: Handle,
    ) -> Router;

    /// Starts the work in the background.
    fn start(&self, tasks: &mut JoinSet<()>);

    /// Looks at the store for the first time, or gives up.
    fn first_look(&self) -> BoxFuture<'_, ()>;

    /// Ends the streams that show statistics.
    fn drain(&self);

    /// Completes when no change runs. To be called when no more of them come.
    fn finish_changes(&self) -> BoxFuture<'_, ()>;

    /// Writes what is still to be written.
    fn stop(&self) -> BoxFuture<'_, ()>;
}
