//! What can be asked for: one table, which says who may ask and what is done.

use hyper::Method;

/// What somebody may do. A greater role may do all that a lesser one may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Role {
    /// Nothing that needs a token.
    Anyone,
    /// Look.
    Read,
    /// Change jobs and tubes too.
    Admin,
}

/// What is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    Health,
    Readiness,
    Metrics,
}

/// A row of the table.
#[derive(Debug)]
pub(super) struct Route {
    pub(super) method: Method,
    /// A segment in braces stands for any one segment.
    pub(super) path: &'static str,
    /// The least role that is let in.
    pub(super) role: Role,
    pub(super) action: Action,
}

/// All of them.
pub(super) const ROUTES: &[Route] = &[
    Route {
        method: Method::GET,
        path: "/healthz",
        role: Role::Anyone,
        action: Action::Health,
    },
    Route {
        method: Method::GET,
        path: "/readyz",
        role: Role::Anyone,
        action: Action::Readiness,
    },
    Route {
        method: Method::GET,
        path: "/metrics",
        role: Role::Read,
        action: Action::Metrics,
    },
];

/// What a path and a method lead to.
#[derive(Debug)]
pub(super) enum Found {
    Route(&'static Route),
    /// Of this path there are other methods.
    Methods(Vec<&'static str>),
    Nothing,
}

/// Look a request up. HEAD is answered where GET is.
pub(super) fn find(method: &Method, path: &str) -> Found {
    let method = match *method {
        Method::HEAD => &Method::GET,
        _ => method,
    };
    let of_path = || ROUTES.iter().filter(|route| matches(route.path, path));
    if let Some(route) = of_path().find(|route| route.method == *method) {
        return Found::Route(route);
    }
    let methods: Vec<_> = of_path().map(|route| route.method.as_str()).collect();
    match methods.is_empty() {
        true => Found::Nothing,
        false => Found::Methods(methods),
    }
}

fn matches(pattern: &str, path: &str) -> bool {
    let (mut of_pattern, mut of_path) = (pattern.split('/'), path.split('/'));
    loop {
        match (of_pattern.next(), of_path.next()) {
            (None, None) => return true,
            (Some(wanted), Some(found)) if wanted == found => {}
            (Some(wanted), Some(found)) if wanted.starts_with('{') && !found.is_empty() => {}
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_matches_segment_by_segment() {
        for (path, is_match) in [
            ("/a/b/c", true),
            ("/a/%2F/c", true),
            ("/a//c", false),
            ("/a/b/c/", false),
            ("/a/b", false),
            ("/a/b/d", false),
            ("", false),
        ] {
            assert_eq!(matches("/a/{x}/c", path), is_match, "{path}");
        }
    }

    #[test]
    fn what_changes_nothing_is_read_and_what_does_needs_an_admin() {
        for route in ROUTES {
            let looks = route.method == Method::GET;
            assert_eq!(looks, route.role < Role::Admin, "{}", route.path);
        }
    }

    #[test]
    fn head_is_get_and_other_methods_are_named() {
        let found = find(&Method::HEAD, "/healthz");
        assert!(matches!(found, Found::Route(route) if route.action == Action::Health));
        let found = find(&Method::POST, "/healthz");
        assert!(matches!(found, Found::Methods(methods) if methods == ["GET"]));
        assert!(matches!(find(&Method::GET, "/nothing"), Found::Nothing));
    }
}
