//! The description of all this, OpenAPI 3.1, made from the table of routes. The schemas stand here; a
//! test holds every answer to its schema, which allows no field that it does not name.

use serde_json::{Map, Value, json};

use super::api::filter::{IDS_MAX, reasons};
use super::api::jobs::ACTIONS;
use super::api::look::LISTED;
use super::api::undo::UNDO_MAX_SECONDS;
use super::api::{archive, checks, events, policies, schedules};
use super::route::{Kind, Parameter, Role, Route, Shape};
use super::routes::ROUTES;

mod trouble;

/// Roles of a server in its cluster.
pub(super) const STANDINGS: [&str; 5] = ["waiting", "follower", "no leader", "leader", "removed"];

/// The document.
pub(super) fn document() -> Value {
    let mut paths = Map::new();
    for route in ROUTES {
        let of_path = paths.entry(route.path).or_insert_with(|| json!({}));
        of_path[route.method.as_str().to_ascii_lowercase()] = operation(route);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "bsd-server",
            "description": "A durable job queue: what it holds, and how it does.",
            "version": env!("CARGO_PKG_VERSION"),
            "license": {"name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {
            "schemas": schemas(),
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "Needed where the server was started with --http-tokens.",
                },
            },
        },
    })
}

fn operation(route: &Route) -> Value {
    let content = match route.shape {
        Shape::Json(name) => json!({"application/json": {"schema": reference(name)}}),
        Shape::Any => json!({"application/json": {"schema": {"type": "object"}}}),
        Shape::Metrics => json!({
            "text/plain": {"schema": {"type": "string"}},
            "application/openmetrics-text": {"schema": {"type": "string"}},
        }),
        Shape::Events(name) => json!({
            "text/event-stream": {
                "schema": {"type": "string"},
                "x-event": reference(name),
            },
        }),
        Shape::Page => json!({"text/html": {"schema": {"type": "string"}}}),
    };
    let mut responses = json!({
        route.status.as_str(): {"description": "It is so.", "content": content},
        "default": {
            "description": "Why not.",
            "content": {"application/problem+json": {"schema": reference("Problem")}},
        },
    });
    if route.may_be_later {
        responses["202"] = json!({"description": "As far as it is known.", "content": content});
    }
    if route.role == Role::Anyone {
        responses["503"] = json!({"description": "It is not so.", "content": content});
    }
    let of_path = braces(route.path).map(
        |name| json!({"name": name, "in": "path", "required": true, "schema": {"type": "string"}}),
    );
    let parameters: Vec<_> = of_path
        .chain(route.parameters.iter().map(parameter))
        .collect();
    let (role, security) = match route.role {
        Role::Anyone => ("anyone", json!([])),
        Role::Read => ("read", json!([{"token": []}])),
        Role::Admin => ("admin", json!([{"token": []}])),
    };
    let mut operation = json!({
        "operationId": route.id,
        "summary": route.summary,
        "parameters": parameters,
        "responses": responses,
        "security": security,
        "x-role": role,
    });
    if let Some(name) = route.takes {
        let content = json!({"application/json": {"schema": reference(name)}});
        operation["requestBody"] = json!({"required": name != "Nothing", "content": content});
    }
    operation
}

fn parameter(parameter: &Parameter) -> Value {
    let schema = match parameter.kind {
        Kind::Text => json!({"type": "string"}),
        Kind::Word(words) => one_of(words),
        Kind::Number { min, max } => json!({"type": "integer", "minimum": min, "maximum": max}),
    };
    json!({
        "name": parameter.name,
        "in": "query",
        "description": parameter.help,
        "required": false,
        "schema": schema,
    })
}

/// The names in braces of a path.
fn braces(path: &str) -> impl Iterator<Item = &str> {
    let segments = path.split('/');
    segments.filter_map(|segment| segment.strip_prefix('{')?.strip_suffix('}'))
}

fn reference(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

/// An object with these fields, which are all there, and no others.
fn object(fields: &[(&str, Value)]) -> Value {
    let names: Vec<_> = fields.iter().map(|(name, _)| *name).collect();
    let properties = fields
        .iter()
        .map(|(name, kind)| ((*name).to_owned(), kind.clone()));
    json!({
        "type": "object",
        "properties": properties.collect::<Map<_, _>>(),
        "required": names,
        "additionalProperties": false,
    })
}

/// A number of things, bytes or whole seconds.
fn count() -> Value {
    json!({"type": "integer", "minimum": 0})
}

/// Seconds, of which there may be parts.
fn time() -> Value {
    json!({"type": "number", "minimum": 0})
}

fn text() -> Value {
    json!({"type": "string"})
}

fn flag() -> Value {
    json!({"type": "boolean"})
}

fn or_null(kind: Value) -> Value {
    json!({"anyOf": [kind, {"type": "null"}]})
}

fn one_of(words: &[&str]) -> Value {
    json!({"type": "string", "enum": words})
}

fn list(kind: Value) -> Value {
    json!({"type": "array", "items": kind})
}

fn schemas() -> Value {
    let mut health = object(&[
        ("status", text()),
        ("reasons", list(text())),
        ("warnings", list(text())),
    ]);
    health["required"] = json!(["status"]);
    let counts = ["urgent", "ready", "reserved", "delayed", "buried"];
    let mut all = requests();
    all.extend(tasks());
    all.extend(trouble::schemas());
    let looks = json!({
        "Health": health,
        "Problem": object(&[
            ("type", text()),
            ("title", text()),
            ("status", count()),
            ("detail", text()),
        ]),
        "Counts": object(&counts.map(|state| (state, count()))),
        "Server": server(),
        "Memory": object(&[
            ("queue_bytes", count()),
            ("clients_bytes", count()),
            ("bodies_bytes", count()),
            ("pauses_bytes", count()),
            ("max_bytes", or_null(count())),
            ("missing_bytes", or_null(count())),
        ]),
        "Log": log(),
        "LogFiles": log_files(),
        "Archive": archive(),
        "ArchiveJoins": object(&[
            ("last_pass_timestamp_seconds", or_null(count())),
            ("joined_links", or_null(count())),
            ("single_links", or_null(count())),
            ("objects", count()),
            ("failures", count()),
            ("trouble", or_null(text())),
        ]),
        "Tubes": object(&[
            ("tubes", list(reference("Tube"))),
            ("next", or_null(text())),
        ]),
        "Tube": tube(),
        "Tally": tally(),
        "Policies": object(&[
            ("policies", list(reference("PolicySet"))),
            ("next", or_null(text())),
        ]),
        "PolicySet": object(&[
            ("tubes", text()),
            ("policy", or_null(reference("PolicyShown"))),
        ]),
        "PolicyShown": open_object(&[], &policy_fields(false)),
        "TubePolicy": tube_policy(),
        "Schedules": object(&[
            ("schedules", list(reference("Schedule"))),
            ("next", or_null(text())),
        ]),
        "Schedule": schedule(),
        "ScheduleDeleted": object(&[("name", text())]),
        "Jobs": object(&[
            ("jobs", list(reference("Job"))),
            ("next", or_null(text())),
        ]),
        "Job": job(),
        "Body": object(&[("encoding", one_of(&["text", "base64"])), ("data", text())]),
        "History": history(),
        "HistoryEntry": history_entry(),
        "JobThen": job_then(),
        "Clients": object(&[
            ("clients", list(reference("Client"))),
            ("next", or_null(text())),
        ]),
        "Client": client(),
        "Changed": object(&[("id", count())]),
        "Paused": object(&[("tubes", count())]),
        "Event": event(),
        "Check": object(&[("at", text()), ("failed", flag()), ("note", text())]),
        "Checks": object(&[
            ("backup", or_null(reference("Check"))),
            ("verify", or_null(reference("Check"))),
            ("rehearsal", or_null(reference("Check"))),
        ]),
        "Drain": object(&[("draining", flag())]),
        "Standby": standby(),
        "ArchiveBase": archive_base(),
        "Leader": object(&[
            ("leads", flag()),
            ("leader", or_null(text())),
            ("http", or_null(text())),
        ]),
        "Cluster": cluster(),
        "ClusterMember": cluster_member(),
        "ClusterAnswer": object(&[("answer", text())]),
    });
    if let Value::Object(looks) = looks {
        all.extend(looks);
    }
    Value::Object(all)
}

fn standby() -> Value {
    object(&[
        ("promoted", flag()),
        ("serves", flag()),
        ("log", or_null(text())),
        ("position", or_null(text())),
        ("durable_at", or_null(text())),
        ("seconds_since_current", or_null(count())),
        ("jobs", count()),
        ("links", count()),
        ("records", count()),
        ("restores", count()),
        (
            "restoring",
            or_null(object(&[("done", count()), ("total", count())])),
        ),
        ("trouble", or_null(text())),
        ("refused", or_null(text())),
    ])
}

fn archive_base() -> Value {
    object(&[
        ("order", count()),
        ("state", one_of(&archive::STAGES)),
        ("name", or_null(text())),
        ("pin", flag()),
        ("asked_at", text()),
        ("seconds", time()),
        ("base", or_null(count())),
        ("position", or_null(text())),
        ("made_at", or_null(text())),
        ("bytes", or_null(count())),
        ("reused_bytes", or_null(count())),
        ("refused", or_null(text())),
    ])
}

fn cluster() -> Value {
    let leader = object(&[
        ("id", text()),
        ("client", or_null(text())),
        ("http", or_null(text())),
    ]);
    object(&[
        ("cluster", or_null(text())),
        ("member", text()),
        ("standing", one_of(&STANDINGS)),
        ("leader", or_null(leader)),
        ("term", count()),
        ("committed", count()),
        ("applied", count()),
        ("first", count()),
        ("last", count()),
        ("ledger_bytes", count()),
        ("changing", flag()),
        ("joining", flag()),
        ("trouble", or_null(text())),
        ("refused_messages", count()),
        ("forwarded_clients", count()),
        ("members", list(reference("ClusterMember"))),
    ])
}

fn cluster_member() -> Value {
    object(&[
        ("id", text()),
        ("peer", text()),
        ("client", or_null(text())),
        ("http", or_null(text())),
        ("clock_ahead_seconds", or_null(time())),
        ("votes", flag()),
        ("leads", flag()),
        ("this", flag()),
        ("connected", flag()),
        ("matched", or_null(count())),
        ("lag", or_null(count())),
        ("needs_snapshot", flag()),
        ("heard_seconds", or_null(time())),
    ])
}

/// Schema of `data` of an event. One that tells of lost events has no time.
fn event() -> Value {
    open_object(
        &[("event", one_of(events::WORDS))],
        &[
            ("time", time()),
            ("tube", text()),
            ("job", count()),
            ("priority", count()),
            ("delay", count()),
            ("body_size", count()),
            ("to", text()),
            ("seconds", count()),
            ("events", count()),
        ],
    )
}

/// An object of which the first fields are there, and the others may be.
fn open_object(needed: &[(&str, Value)], others: &[(&str, Value)]) -> Value {
    let names: Vec<_> = needed.iter().map(|(name, _)| *name).collect();
    let mut object = object(&[needed, others].concat());
    object["required"] = json!(names);
    object
}

/// Schemas of request bodies.
fn requests() -> Map<String, Value> {
    let dry_run = ("dry_run", flag());
    let rate = ("rate", or_null(count()));
    let most = ("most", or_null(count()));
    let limit = ("limit", or_null(count()));
    let mut seconds = count();
    (seconds["minimum"], seconds["maximum"]) = (json!(1), json!(UNDO_MAX_SECONDS));
    let undo = ("undo", or_null(seconds));
    let states = list(one_of(LISTED));
    let all = [
        ("Nothing", object(&[])),
        (
            "Release",
            open_object(&[], &[("priority", count()), ("delay", count())]),
        ),
        ("Promotion", open_object(&[], &[("force", flag())])),
        (
            "NewArchiveBase",
            open_object(&[], &[("name", text()), ("pin", flag())]),
        ),
        ("JoinCluster", object(&[("address", text())])),
        ("OfMember", object(&[("member", text())])),
        (
            "NewCheck",
            open_object(
                &[("check", one_of(&checks::KINDS))],
                &[("failed", flag()), ("note", text())],
            ),
        ),
        (
            "NewJob",
            open_object(
                &[("body", reference("Bytes"))],
                &[("priority", count()), ("delay", count()), ("ttr", count())],
            ),
        ),
        ("Delay", object(&[("delay", count())])),
        ("Priority", object(&[("priority", count())])),
        ("Move", open_object(&[("to", text())], &[("kick", flag())])),
        ("Policy", open_object(&[], &policy_fields(true))),
        ("NewSchedule", new_schedule()),
        ("Pause", object(&[("seconds", count())])),
        (
            "PauseMany",
            object(&[("tube", text()), ("seconds", count())]),
        ),
        (
            "Clear",
            open_object(&[("states", states)], &[dry_run.clone(), most.clone()]),
        ),
        (
            "Redrive",
            open_object(
                &[],
                &[("to", text()), rate.clone(), dry_run.clone(), most.clone()],
            ),
        ),
        (
            "NewTask",
            open_object(
                &[("action", one_of(ACTIONS)), ("filter", reference("Filter"))],
                &[&of_action()[..], &[rate, dry_run, most, limit, undo]].concat(),
            ),
        ),
        (
            "NewSearch",
            open_object(
                &[("filter", reference("Filter"))],
                &[("limit", count()), ("after", or_null(text()))],
            ),
        ),
        ("Filter", filter()),
        (
            "Bytes",
            open_object(
                &[("data", text())],
                &[("encoding", one_of(&["text", "base64"]))],
            ),
        ),
    ];
    all.map(|(name, schema)| (name.to_owned(), schema))
        .into_iter()
        .collect()
}

/// Fields of actions that need more than their names.
fn of_action() -> [(&'static str, Value); 4] {
    [
        ("delay", count()),
        ("priority", count()),
        ("to", text()),
        ("kick", flag()),
    ]
}

fn filter() -> Value {
    let mut ids = list(count());
    (ids["minItems"], ids["maxItems"]) = (json!(1), json!(IDS_MAX));
    open_object(
        &[("tube", text())],
        &[
            ("states", list(one_of(LISTED))),
            ("ids", ids),
            ("id_min", count()),
            ("id_max", count()),
            ("priority_min", count()),
            ("priority_max", count()),
            ("age_min_seconds", count()),
            ("age_max_seconds", count()),
            ("reason", one_of(&reasons())),
            ("dead_lettered_from", text()),
            ("text", reference("Bytes")),
            ("contains", reference("Bytes")),
        ],
    )
}

/// Long work, as it is told of.
fn tasks() -> Map<String, Value> {
    let states = [
        "counting",
        "running",
        "held",
        "returning",
        "done",
        "undone",
        "cancelled",
        "failed",
    ];
    let progress = [
        ("id", count()),
        ("state", one_of(&states)),
        ("reason", or_null(text())),
        ("took_seconds", time()),
        ("looked_at", count()),
        ("unread", count()),
        ("matched", count()),
        ("filter", reference("Filter")),
    ];
    let of_task = [
        ("changed", count()),
        ("skipped", count()),
        ("action", one_of(ACTIONS)),
        ("dry_run", flag()),
        ("rate", or_null(count())),
        ("most", or_null(count())),
        ("limit", or_null(count())),
        ("undo", or_null(count())),
    ];
    let not_returned = object(&[
        ("gone", count()),
        ("changed", count()),
        ("no_room", count()),
    ]);
    let of_hold = [
        ("held", count()),
        ("undo_left_seconds", time()),
        ("returned", count()),
        ("not_returned", not_returned),
        ("sample", list(reference("Job"))),
    ];
    let task = open_object(
        &[&progress[..], &of_task].concat(),
        &[&of_action()[..], &of_hold].concat(),
    );
    let of_search = [("limit", count()), ("after", or_null(text()))];
    let found = [("jobs", list(reference("Job"))), ("next", or_null(text()))];
    let search = open_object(&[&progress[..], &of_search].concat(), &found);
    let all = [
        ("Search", search),
        (
            "Searches",
            object(&[("searches", list(reference("Search")))]),
        ),
        ("Task", task),
        ("Tasks", object(&[("tasks", list(reference("Task")))])),
        (
            "Cleared",
            object(&[
                ("tube", text()),
                ("states", list(one_of(LISTED))),
                ("dry_run", flag()),
                ("matched", count()),
                ("deleted", count()),
            ]),
        ),
    ];
    all.map(|(name, schema)| (name.to_owned(), schema))
        .into_iter()
        .collect()
}

fn server() -> Value {
    object(&[
        ("version", text()),
        ("protocol", text()),
        ("pid", count()),
        ("id", text()),
        ("uptime_seconds", count()),
        ("draining", flag()),
        ("jobs", reference("Counts")),
        ("puts", count()),
        ("timeouts", count()),
        ("job_size_max", count()),
        ("tubes", count()),
        ("connections", count()),
        ("producers", count()),
        ("workers", count()),
        ("waiting", count()),
        ("memory", reference("Memory")),
        ("log", or_null(reference("Log"))),
        ("archive", or_null(reference("Archive"))),
    ])
}

fn log() -> Value {
    object(&log_fields())
}

fn log_fields() -> [(&'static str, Value); 12] {
    [
        ("live_bytes", count()),
        ("dead_bytes", count()),
        ("reserved_bytes", count()),
        ("unsynced_bytes", count()),
        ("segments", count()),
        ("first_segment", count()),
        ("current_segment", count()),
        ("records_written", count()),
        ("records_migrated", count()),
        ("compactions", count()),
        ("compacting", flag()),
        ("missing_bytes", or_null(count())),
    ]
}

fn archive() -> Value {
    object(&[
        ("up", flag()),
        ("trouble", or_null(text())),
        ("epoch", or_null(count())),
        ("archived", or_null(text())),
        ("lag_bytes", count()),
        ("lag_seconds", time()),
        ("in_gap", flag()),
        ("base_percent", or_null(count())),
        ("gaps", count()),
        ("links", count()),
        ("bytes", count()),
        ("bases", count()),
        ("last_base_timestamp_seconds", or_null(count())),
        ("errors", count()),
        ("joins", or_null(reference("ArchiveJoins"))),
        ("rests", flag()),
        ("member", or_null(text())),
    ])
}

/// The log, file by file.
fn log_files() -> Value {
    let place = object(&[("begin", count()), ("end", count())]);
    let file = object(&[
        ("name", text()),
        ("first_segment", count()),
        ("last_segment", count()),
        ("rewritten", count()),
        ("size", count()),
        ("live_bytes", count()),
        ("dead_bytes", count()),
        ("damaged_bytes", count()),
        ("damage", list(place)),
        ("written_now", flag()),
    ]);
    let oldest = object(&[("id", count()), ("first_segment", count())]);
    let files = [
        ("sync", one_of(&["always", "interval", "never", "majority"])),
        ("sync_interval_ms", or_null(count())),
        ("files", list(file)),
        ("files_left_out", count()),
        ("oldest_job", or_null(oldest)),
        ("archive", or_null(reference("Archive"))),
        ("checks", reference("Checks")),
    ];
    object(&[&log_fields()[..], &files].concat())
}

fn tube() -> Value {
    object(&tube_fields())
}

fn tube_fields() -> Vec<(&'static str, Value)> {
    vec![
        ("name", text()),
        ("exists", flag()),
        ("jobs", reference("Counts")),
        ("users", count()),
        ("watchers", count()),
        ("waiting", count()),
        ("puts", count()),
        ("deletes", count()),
        ("pauses", count()),
        ("pause_left_seconds", time()),
        ("oldest_ready_age_seconds", time()),
        ("tally", or_null(reference("Tally"))),
    ]
}

/// What has happened in a tube since it began, and how long it took.
fn tally() -> Value {
    let times = object(&[
        ("jobs", count()),
        ("p50_seconds", time()),
        ("p95_seconds", time()),
        ("p99_seconds", time()),
    ]);
    object(&[
        ("reserves", count()),
        ("releases", count()),
        ("buries", count()),
        ("kicks", count()),
        ("timeouts", count()),
        ("fails", count()),
        ("wait", times.clone()),
        ("hold", times),
    ])
}

/// The values of a policy. In a request numbers may be texts too.
fn policy_fields(is_request: bool) -> Vec<(&'static str, Value)> {
    let number = || json!({"type": "number", "minimum": 0});
    let kind = |name: &str| match (policies::is_number(name), is_request) {
        (true, false) => number(),
        (false, false) => text(),
        (_, true) => json!({"anyOf": [number(), text(), {"type": "null"}]}),
    };
    policies::names().map(|name| (name, kind(name))).collect()
}

fn tube_policy() -> Value {
    let failures: Vec<_> = reasons()
        .into_iter()
        .map(|reason| (reason, count()))
        .collect();
    open_object(
        &[
            ("tube", or_null(text())),
            ("set_for", or_null(text())),
            ("policy", or_null(reference("PolicyShown"))),
        ],
        &[
            ("jobs", count()),
            ("bytes", count()),
            ("failures", object(&failures)),
            ("set_aside", count()),
            ("puts_refused", count()),
            ("dead_letters_of", list(text())),
        ],
    )
}

fn schedule() -> Value {
    object(&[
        ("name", text()),
        ("cron", text()),
        ("tz", text()),
        ("tube", text()),
        ("priority", count()),
        ("ttr", count()),
        ("key", or_null(text())),
        ("missed", one_of(&schedules::MISSED)),
        ("paused", flag()),
        ("body_size", count()),
        ("body", or_null(reference("Body"))),
        ("fired_up_to", or_null(text())),
        ("waiting", count()),
        ("next_firings", list(text())),
    ])
}

fn new_schedule() -> Value {
    open_object(
        &[
            ("cron", text()),
            ("tube", text()),
            ("body", reference("Bytes")),
        ],
        &[
            ("tz", or_null(text())),
            ("priority", or_null(count())),
            ("ttr", or_null(count())),
            ("key", or_null(text())),
            ("missed", or_null(one_of(&schedules::MISSED))),
            ("paused", or_null(flag())),
        ],
    )
}

fn client() -> Value {
    open_object(
        &[
            ("id", count()),
            ("address", or_null(text())),
            ("name", or_null(text())),
            ("unread_bytes", count()),
            ("uses", text()),
            ("watched_tubes", count()),
            ("has_reserved", flag()),
            ("waits", flag()),
            ("producer", flag()),
            ("worker", flag()),
        ],
        &[
            ("watches", list(text())),
            ("reserved", list(reference("Job"))),
        ],
    )
}

fn history() -> Value {
    open_object(
        &[
            ("id", count()),
            ("state", one_of(&["reading", "done"])),
            ("read_bytes", count()),
            ("log_bytes", count()),
        ],
        &[
            (
                "now",
                one_of(&["ready", "reserved", "delayed", "buried", "gone"]),
            ),
            ("events", list(reference("HistoryEntry"))),
            ("left_out", count()),
            ("damage", list(text())),
        ],
    )
}

fn history_entry() -> Value {
    open_object(
        &[
            (
                "event",
                one_of(&["put", "changed", "attributes", "deleted"]),
            ),
            ("after", or_null(text())),
            ("before", or_null(text())),
            ("file", text()),
            ("offset", count()),
            ("size", count()),
            ("salvaged", flag()),
            ("what", text()),
        ],
        &[
            ("tube", text()),
            ("ttr", count()),
            ("body_size", count()),
            ("job", reference("JobThen")),
        ],
    )
}

fn job_then() -> Value {
    object(&[
        ("state", one_of(LISTED)),
        ("priority", count()),
        ("delay", count()),
        ("due", or_null(text())),
        ("reserves", count()),
        ("timeouts", count()),
        ("releases", count()),
        ("buries", count()),
        ("kicks", count()),
    ])
}

fn job() -> Value {
    let needed = [
        ("id", count()),
        ("tube", text()),
        ("state", one_of(&["ready", "reserved", "delayed", "buried"])),
        ("priority", count()),
        ("delay", count()),
        ("ttr", count()),
        ("age_seconds", time()),
        ("time_left_seconds", or_null(time())),
        ("reserved_by", or_null(count())),
        ("reserves", count()),
        ("timeouts", count()),
        ("releases", count()),
        ("buries", count()),
        ("kicks", count()),
        ("body_size", count()),
        ("body", or_null(reference("Body"))),
        ("deliveries", count()),
    ];
    let others = [
        ("key", text()),
        ("unique", one_of(&["exists", "waiting"])),
        ("group", text()),
        ("reason", one_of(&reasons())),
        ("text", reference("Body")),
        ("failures", count()),
        ("dead_lettered_from", text()),
        ("dead_lettered_at", text()),
    ];
    open_object(&needed, &others)
}
