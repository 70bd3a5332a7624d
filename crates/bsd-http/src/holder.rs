//! The holder of a token.

use super::route::Role;
use bsd_net::Grant;

/// What its token opens over HTTP, and which line that is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Holder {
    /// [`Role::Anyone`] if the token opens nothing over HTTP.
    pub(super) role: Role,
    /// The line of the file that lets it in.
    pub(super) line: usize,
}

impl Holder {
    pub(super) fn of(grant: &Grant) -> Holder {
        let role = match &grant.scope {
            scope if scope.changes_all() => Role::Admin,
            scope if scope.shows_all() => Role::Read,
            _ => Role::Anyone,
        };
        let line = grant.line;
        Holder { role, line }
    }
}
