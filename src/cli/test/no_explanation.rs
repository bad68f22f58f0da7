//! Stands for `explanation` in a build without `rlaas explain`.

use rlaas_limiter::Limiter;
use tokio::runtime::Runtime;

use super::request::StepRequest;

pub(super) fn explain(_limiter: &Limiter, _request: &StepRequest, _runtime: &Runtime) -> String {
    "no explanation: this build has no administration: feature admin\n".to_owned()
}
