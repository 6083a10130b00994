//! `UNKNOWN_*`: a miss whose cause is that nothing at all is known under a key of the request's scope.
//!
//! From the outermost key to the innermost: the tenant, the model for that tenant, the hash scheme for both. That nothing
//! is known anywhere is a cold start, and names no key. The adapter is not among them: requests for one that nobody has
//! used yet are ordinary.

use super::reason::ReasonCode;
use crate::index::Index;
use crate::observation::Scope;

/// The outermost key of `scope` of which nothing is known.
pub fn classify(index: &Index, scope: &Scope) -> Option<ReasonCode> {
    if index.is_empty() {
        None
    } else if !index.knows_tenant(&scope.tenant_id) {
        Some(ReasonCode::UnknownTenant)
    } else if !index.knows_model(&scope.tenant_id, &scope.model_id) {
        Some(ReasonCode::UnknownModel)
    } else if index.serving(scope).next().is_none() {
        Some(ReasonCode::UnknownHashScheme)
    } else {
        None
    }
}
