//! All requests of the API: one table of roles and actions. Routing, roles and the description of
//! the API are made from it.

use hyper::{Method, StatusCode};

use super::api::look::LISTED;
use super::api::trouble::WAIT_MAX_SECONDS_MAX;
use super::api::{LIMIT_MAX, ranking};
use super::console;
use super::route::{Action, Parameter, Role, Route, Shape, look, route};

/// A route on which something is read, with an answer of this schema.
const fn read(path: &'static str, action: Action, answer: &'static str) -> Route {
    look(path, Role::Read, action, Shape::Json(answer))
}

/// A route on which something is changed, as the body that is sent says: see [`Route::json`].
const fn change(path: &'static str, action: Action) -> Route {
    route(Method::POST, path, Role::Admin, action, Shape::Any)
}

/// The most entries of a page.
const fn limit(help: &'static str) -> Parameter {
    Parameter::number("limit", help, 1, LIMIT_MAX as u64)
}

/// A route on which something is replaced, as the body that is sent says.
const fn put(
    path: &'static str,
    action: Action,
    takes: &'static str,
    answer: &'static str,
) -> Route {
    route(Method::PUT, path, Role::Admin, action, Shape::Any).json(takes, answer)
}

/// A route on which something is deleted or ended.
const fn delete(path: &'static str, action: Action, answer: &'static str) -> Route {
    let shape = Shape::Json(answer);
    route(Method::DELETE, path, Role::Admin, action, shape)
}

const POLICY: &str = "/api/v1/tubes/{tube}/policy";
const SCHEDULE: &str = "/api/v1/schedules/{schedule}";

/// All of them, the console's apart.
pub(super) const ROUTES: &[Route] = &[
    look(
        "/healthz",
        Role::Anyone,
        Action::Health,
        Shape::Json("Health"),
    )
    .named("health", "Whether the loop turns"),
    look(
        "/readyz",
        Role::Anyone,
        Action::Readiness,
        Shape::Json("Health"),
    )
    .named("readiness", "Whether a put would be taken, and why not"),
    look(
        "/leader",
        Role::Anyone,
        Action::Leader,
        Shape::Json("Leader"),
    )
    .named(
        "leader",
        "Whether this member of a cluster leads, for load balancers",
    ),
    look("/metrics", Role::Read, Action::Metrics, Shape::Metrics)
        .named("metrics", "Everything that is measured, for Prometheus"),
    look(
        "/api/v1/openapi.json",
        Role::Read,
        Action::Description,
        Shape::Any,
    )
    .named("description", "This description"),
    read("/api/v1/server", Action::Server, "Server").named("server", "The server in numbers"),
    read("/api/v1/trouble", Action::Trouble, "Troubles")
        .named(
            "trouble",
            "What is wrong now, why, and what to do, the most urgent first: 100 findings at most",
        )
        .taking(&[Parameter::number(
            "wait_max_seconds",
            "A ready job that was put longer ago has waited too long [900]",
            0,
            WAIT_MAX_SECONDS_MAX,
        )]),
    read("/api/v1/log", Action::Log, "LogFiles").named(
        "log",
        "The files of the log: the last 1,000, what is damaged in them, and the oldest job",
    ),
    read("/api/v1/tubes", Action::Tubes, "Tubes")
        .named("tubes", "Tubes, by name")
        .taking(&[
            Parameter::text(
                "after",
                "Only tubes behind this name: `next` of the page before",
            ),
            Parameter::text("contains", "Only tubes with this in their names"),
            limit("The most tubes of a page [100]"),
        ]),
    read("/api/v1/tubes/{tube}", Action::Tube, "Tube").named("tube", "One tube"),
    read("/api/v1/tubes/{tube}/why", Action::Why, "TubeWhy").named(
        "why",
        "Why the jobs of a tube are not done: what holds them back, and who has the reserved ones",
    ),
    read("/api/v1/ranking", Action::Ranking, "Ranking")
        .named(
            "ranking",
            "Tubes, those first that have the most of something",
        )
        .taking(&[
            Parameter::word("sort", "What they are sorted by [ready]", ranking::SORTS),
            Parameter::text(
                "tube",
                "Only tubes whose names match: * is any text, ? any one character",
            ),
            Parameter::number("limit", "The most tubes [100]", 1, ranking::TUBES_MAX),
        ]),
    read("/api/v1/policies", Action::Policies, "Policies")
        .named(
            "policies",
            "Policies of tubes, by the names and patterns under which they were set",
        )
        .taking(&[
            Parameter::text(
                "after",
                "Only policies behind this name: `next` of the page before",
            ),
            limit("The most policies of a page [100]"),
        ]),
    read(POLICY, Action::Policy, "TubePolicy").named(
        "policy",
        "The policy of a tube, its own or that of a pattern, and what it has done",
    ),
    put(POLICY, Action::SetPolicy, "Policy", "PolicySet").named(
        "setPolicy",
        "Set the policy of a tube, or of the tubes that match a pattern, as a whole",
    ),
    delete(POLICY, Action::RemovePolicy, "PolicySet").named(
        "removePolicy",
        "Remove the policy of a tube, or of a pattern",
    ),
    read("/api/v1/schedules", Action::Schedules, "Schedules")
        .named(
            "schedules",
            "Schedules by name, each with the times at which it is due next, without bodies",
        )
        .taking(&[
            Parameter::text(
                "after",
                "Only schedules behind this name: `next` of the page before",
            ),
            Parameter::text("tube", "Only schedules that put into this tube"),
            limit("The most schedules of a page [100]"),
        ]),
    read(SCHEDULE, Action::Schedule, "Schedule").named("schedule", "One schedule, with its body"),
    put(SCHEDULE, Action::SetSchedule, "NewSchedule", "Schedule").named(
        "setSchedule",
        "Set a schedule as a whole: what puts a job at the times of a cron expression",
    ),
    delete(SCHEDULE, Action::DeleteSchedule, "ScheduleDeleted").named(
        "deleteSchedule",
        "Delete a schedule; the jobs that it has put stay",
    ),
    change("/api/v1/schedules/{schedule}/run", Action::RunSchedule)
        .json("Nothing", "Changed")
        .named("runSchedule", "Put the job of a schedule now")
        .answering(StatusCode::CREATED),
    change("/api/v1/schedules/{schedule}/pause", Action::PauseSchedule)
        .json("Nothing", "Schedule")
        .named(
            "pauseSchedule",
            "Have a schedule put nothing until it is resumed",
        ),
    change("/api/v1/schedules/{schedule}/resume", Action::PauseSchedule)
        .json("Nothing", "Schedule")
        .named("resumeSchedule", "Have a schedule put again"),
    read("/api/v1/tubes/{tube}/jobs", Action::Jobs, "Jobs")
        .named(
            "jobs",
            "Jobs of a tube that are in a state, in the order of their turn, without bodies",
        )
        .taking(&[
            Parameter::word("state", "The state [ready]", LISTED),
            Parameter::text("after", "Only jobs behind this: `next` of the page before"),
            limit("The most jobs of a page [100]"),
        ]),
    read("/api/v1/jobs/{id}", Action::Job, "Job")
        .named("job", "One job, with its body up to 64 KiB"),
    read("/api/v1/jobs/{id}/history", Action::History, "History")
        .named(
            "history",
            "What the log still holds about a job; 202 while it is read: ask again",
        )
        .or_later(),
    delete(
        "/api/v1/jobs/{id}/history",
        Action::CancelHistory,
        "History",
    )
    .named("cancelHistory", "End the reading of a history")
    .lasting_nothing(),
    read("/api/v1/clients", Action::Clients, "Clients")
        .named("clients", "Clients that are connected, by their ids")
        .taking(&[
            Parameter::number(
                "after",
                "Only clients behind this one: `next` of the page before",
                0,
                u32::MAX as u64,
            ),
            limit("The most clients of a page [100]"),
        ]),
    read("/api/v1/clients/{client}", Action::Client, "Client").named(
        "client",
        "One client, with the tubes that it watches and the jobs that it has reserved, 250 of each",
    ),
    delete("/api/v1/clients/{client}", Action::CloseClient, "Changed")
        .named(
            "closeClient",
            "Close the connection of a client; the jobs that it has reserved are ready again",
        )
        .taking(&[Parameter::text(
            "address",
            "Only if it is connected from here: ids are given again",
        )]),
    change("/api/v1/tubes/{tube}/jobs", Action::Put)
        .json("NewJob", "Changed")
        .named("put", "Put a job")
        .answering(StatusCode::CREATED),
    delete("/api/v1/jobs/{id}", Action::Delete, "Changed").named("delete", "Delete a job"),
    change("/api/v1/jobs/{id}/kick", Action::Change)
        .json("Nothing", "Changed")
        .named("kick", "Make a buried or delayed job ready"),
    change("/api/v1/jobs/{id}/bury", Action::Change)
        .json("Nothing", "Changed")
        .named("bury", "Bury a ready or delayed job"),
    change("/api/v1/jobs/{id}/redrive", Action::Change)
        .json("Nothing", "Changed")
        .named(
            "sendBack",
            "Make a dead letter ready in the tube that it came from",
        ),
    change("/api/v1/jobs/{id}/release", Action::Release)
        .json("Release", "Changed")
        .named("release", "Take a job from the client that has reserved it"),
    change("/api/v1/jobs/{id}/delay", Action::Change)
        .json("Delay", "Changed")
        .named("delay", "Delay a job, counted from now"),
    change("/api/v1/jobs/{id}/priority", Action::Change)
        .json("Priority", "Changed")
        .named("priority", "Change the priority of a job"),
    change("/api/v1/jobs/{id}/move", Action::Change)
        .json("Move", "Changed")
        .named("move", "Move a job into another tube"),
    change("/api/v1/tubes/{tube}/pause", Action::Pause)
        .json("Pause", "Paused")
        .named("pause", "Hand out no job of a tube for some time"),
    change("/api/v1/pause", Action::PauseMany)
        .json("PauseMany", "Paused")
        .named("pauseMany", "Pause every tube whose name matches"),
    change("/api/v1/tubes/{tube}/clear", Action::Clear)
        .json("Clear", "Cleared")
        .named(
            "clear",
            "Delete all jobs of a tube that are in some states, at once",
        ),
    change("/api/v1/tubes/{tube}/redrive", Action::Redrive)
        .json("Redrive", "Task")
        .named(
            "redrive",
            "Send the dead letters of a tube back and make its buried jobs ready, \
             or move these, as a task",
        )
        .answering(StatusCode::ACCEPTED),
    look(
        "/api/v1/events",
        Role::Read,
        Action::Events,
        Shape::Events("Event"),
    )
    .named("events", "What happens to jobs, as it happens")
    .taking(&[Parameter::text(
        "tube",
        "Only of tubes whose names match: * is any text, ? any one character",
    )]),
    change("/api/v1/drain", Action::Drain)
        .json("Nothing", "Drain")
        .named("drain", "Refuse puts from now on, until it is ended"),
    delete("/api/v1/drain", Action::Undrain, "Drain").named("undrain", "Take puts again"),
    change("/api/v1/log/checks", Action::NoteCheck)
        .json("NewCheck", "Checks")
        .named("noteCheck", "Tell that the log was backed up or verified"),
    read("/api/v1/standby", Action::Standby, "Standby").named("standby", "How far a standby is"),
    change("/api/v1/promote", Action::Promote)
        .json("Promotion", "Standby")
        .named("promote", "Have a standby take over as soon as it can")
        .answering(StatusCode::ACCEPTED),
    read("/api/v1/archive/base", Action::ArchiveBase, "ArchiveBase").named(
        "archiveBase",
        "The last base of the archive that was asked for, and how far it is",
    ),
    change("/api/v1/archive/base", Action::MakeBase)
        .json("NewArchiveBase", "ArchiveBase")
        .named(
            "makeArchiveBase",
            "Have a base of the archive made now, with a name, or pinned",
        )
        .answering(StatusCode::ACCEPTED),
    read("/api/v1/cluster", Action::Cluster, "Cluster").named(
        "cluster",
        "The cluster, as this member of it knows it: who leads, who is a member, who lags",
    ),
    change("/api/v1/cluster/init", Action::Steer)
        .json("Nothing", "ClusterAnswer")
        .named(
            "initCluster",
            "Begin a cluster of this server, with the jobs that are here",
        )
        .answering(StatusCode::ACCEPTED),
    change("/api/v1/cluster/join", Action::Steer)
        .json("JoinCluster", "ClusterAnswer")
        .named(
            "joinCluster",
            "Add this server to the cluster of the member at an address",
        )
        .answering(StatusCode::ACCEPTED),
    change("/api/v1/cluster/remove", Action::Steer)
        .json("OfMember", "ClusterAnswer")
        .named(
            "removeMember",
            "Remove a member from the cluster, for ever; ask the leader",
        )
        .answering(StatusCode::ACCEPTED),
    change("/api/v1/cluster/transfer", Action::Steer)
        .json("OfMember", "ClusterAnswer")
        .named(
            "transferLead",
            "Transfer leadership to another member; ask the leader",
        )
        .answering(StatusCode::ACCEPTED),
    read("/api/v1/tasks", Action::Tasks, "Tasks").named(
        "tasks",
        "Tasks that are under way, and the last that are over",
    ),
    change("/api/v1/tasks", Action::StartTask)
        .json("NewTask", "Task")
        .named(
            "startTask",
            "Change all jobs that a filter matches, as a task",
        )
        .answering(StatusCode::ACCEPTED),
    read("/api/v1/tasks/{task}", Action::Task, "Task").named("task", "One task"),
    delete("/api/v1/tasks/{task}", Action::CancelTask, "Task")
        .named("cancelTask", "End a task; what it has done stays"),
    change("/api/v1/tasks/{task}/undo", Action::UndoTask)
        .json("Nothing", "Task")
        .named(
            "undoTask",
            "Bring back the jobs that a delete holds back, as long as it does",
        )
        .answering(StatusCode::ACCEPTED),
    change("/api/v1/search", Action::Search)
        .json("NewSearch", "Search")
        .named("search", "Look for jobs")
        .answering(StatusCode::ACCEPTED)
        .lasting_nothing(),
    read("/api/v1/search", Action::Searches, "Searches").named(
        "searches",
        "Searches that are under way, and the last that are over",
    ),
    read("/api/v1/search/{search}", Action::Found, "Search")
        .named("found", "One search, and what it has found"),
    delete("/api/v1/search/{search}", Action::CancelSearch, "Search")
        .named("cancelSearch", "End a search")
        .lasting_nothing(),
];

/// Match of a path and a method.
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
    let all = || ROUTES.iter().chain(console::ROUTES);
    let of_path = || all().filter(|route| matches(route.path, path));
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
        for route in ROUTES.iter().chain(console::ROUTES) {
            let looks = route.method == Method::GET
                || route.path.starts_with("/api/v1/search")
                || route.path.starts_with("/find/")
                || route.path.ends_with("/history");
            let is_door = ["/login", "/logout"].contains(&route.path);
            let needs_admin = route.role == Role::Admin;
            assert_eq!(needs_admin, !looks && !is_door, "{}", route.path);
        }
    }

    #[test]
    fn what_stands_for_braces_is_captured() {
        let found = find(&Method::GET, "/api/v1/tubes/a%2Fb");
        let Found::Route(route) = found else {
            panic!("{found:?}")
        };
        assert_eq!(route.captured("/api/v1/tubes/a%2Fb"), Some("a%2Fb"));
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
