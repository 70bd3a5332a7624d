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

/// Fields, of which those of one kind may stand in one text, with a space between them.
type Fields<'a> = &'a [(&'a str, Value)];

fn names<'a>(fields: Fields<'a>) -> impl Iterator<Item = &'a str> {
    fields.iter().flat_map(|(names, _)| names.split(' '))
}

/// An object with these fields, which are all there, and no others.
fn object(fields: Fields<'_>) -> Value {
    let of_kind = |(names, kind): &(&str, Value)| {
        let named = |name: &str| (name.to_owned(), kind.clone());
        names.split(' ').map(named).collect::<Vec<_>>()
    };
    json!({
        "type": "object",
        "properties": fields.iter().flat_map(of_kind).collect::<Map<_, _>>(),
        "required": names(fields).collect::<Vec<_>>(),
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

/// A page of a list, and where the next one begins.
fn page(name: &str, of: &str) -> Value {
    object(&[(name, list(reference(of))), ("next", or_null(text()))])
}

fn schemas() -> Value {
    let mut health = object(&[("status", text()), ("reasons warnings", list(text()))]);
    health["required"] = json!(["status"]);
    let counts = ["urgent", "ready", "reserved", "delayed", "buried"];
    let mut all = requests();
    all.extend(tasks());
    all.extend(trouble::schemas());
    let looks = json!({
        "Health": health,
        "Problem": object(&[
            ("type title detail", text()),
            ("status", count()),
        ]),
        "Counts": object(&counts.map(|state| (state, count()))),
        "Server": server(),
        "Memory": object(&[
            ("queue_bytes clients_bytes bodies_bytes", count()),
            ("pauses_bytes", count()),
            ("max_bytes missing_bytes", or_null(count())),
        ]),
        "Log": log(),
        "LogFiles": log_files(),
        "Archive": archive(),
        "ArchiveJoins": object(&[
            ("last_pass_timestamp_seconds joined_links", or_null(count())),
            ("single_links", or_null(count())),
            ("objects failures", count()),
            ("trouble", or_null(text())),
        ]),
        "Tubes": page("tubes", "Tube"),
        "Tube": tube(),
        "Tally": tally(),
        "Policies": page("policies", "PolicySet"),
        "PolicySet": object(&[
            ("tubes", text()),
            ("policy", or_null(reference("PolicyShown"))),
        ]),
        "PolicyShown": open_object(&[], &policy_fields(false)),
        "TubePolicy": tube_policy(),
        "Schedules": page("schedules", "Schedule"),
        "Schedule": schedule(),
        "ScheduleDeleted": object(&[("name", text())]),
        "Jobs": page("jobs", "Job"),
        "Job": job(),
        "Body": object(&[("encoding", one_of(&["text", "base64"])), ("data", text())]),
        "History": history(),
        "HistoryEntry": history_entry(),
        "JobThen": job_then(),
        "Clients": page("clients", "Client"),
        "Client": client(),
        "Changed": object(&[("id", count())]),
        "Paused": object(&[("tubes", count())]),
        "Event": event(),
        "Check": object(&[("at", text()), ("failed", flag()), ("note", text())]),
        "Checks": object(&[
            ("backup verify rehearsal", or_null(reference("Check"))),
        ]),
        "Drain": object(&[("draining", flag())]),
        "Standby": standby(),
        "ArchiveBase": archive_base(),
        "Leader": object(&[
            ("leads", flag()),
            ("leader http", or_null(text())),
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
        ("promoted serves", flag()),
        ("log position durable_at", or_null(text())),
        ("seconds_since_current", or_null(count())),
        ("jobs links records restores", count()),
        (
            "restoring",
            or_null(object(&[("done", count()), ("total", count())])),
        ),
        ("trouble refused", or_null(text())),
    ])
}

/// That of the first archive, and those of all.
fn archive_base() -> Value {
    let mut fields = vec![
        ("url", text()),
        ("order", count()),
        ("state", one_of(&archive::STAGES)),
        ("name position made_at refused", or_null(text())),
        ("pin", flag()),
        ("asked_at", text()),
        ("seconds", time()),
        ("base bytes reused_bytes", or_null(count())),
    ];
    fields.push(("archives", list(object(&fields))));
    object(&fields)
}

fn cluster() -> Value {
    let leader = object(&[("id", text()), ("client http", or_null(text()))]);
    object(&[
        ("cluster trouble", or_null(text())),
        ("member", text()),
        ("standing", one_of(&STANDINGS)),
        ("leader", or_null(leader)),
        ("term committed applied first last ledger_bytes", count()),
        ("refused_messages", count()),
        ("forwarded_clients", count()),
        ("changing joining", flag()),
        ("members", list(reference("ClusterMember"))),
    ])
}

fn cluster_member() -> Value {
    object(&[
        ("id peer", text()),
        ("client http", or_null(text())),
        ("clock_ahead_seconds heard_seconds", or_null(time())),
        ("votes leads this connected needs_snapshot", flag()),
        ("matched lag", or_null(count())),
    ])
}

/// Schema of `data` of an event. One that tells of lost events has no time.
fn event() -> Value {
    open_object(
        &[("event", one_of(events::WORDS))],
        &[
            ("time", time()),
            ("tube to", text()),
            ("job priority delay body_size seconds events", count()),
        ],
    )
}

/// An object of which the first fields are there, and the others may be.
fn open_object(needed: Fields<'_>, others: Fields<'_>) -> Value {
    let mut object = object(&[needed, others].concat());
    object["required"] = names(needed).collect();
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
            open_object(&[], &[("name", text()), ("pin", flag()), ("url", text())]),
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
fn of_action() -> Vec<(&'static str, Value)> {
    vec![
        ("delay priority", count()),
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
            ("id_min id_max priority_min priority_max", count()),
            ("age_min_seconds age_max_seconds", count()),
            ("reason", one_of(&reasons())),
            ("dead_lettered_from", text()),
            ("text contains", reference("Bytes")),
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
        ("id looked_at unread matched", count()),
        ("state", one_of(&states)),
        ("reason", or_null(text())),
        ("took_seconds", time()),
        ("filter", reference("Filter")),
    ];
    let of_task = [
        ("changed skipped", count()),
        ("action", one_of(ACTIONS)),
        ("dry_run", flag()),
        ("rate most limit undo", or_null(count())),
    ];
    let not_returned = object(&[("gone changed no_room", count())]);
    let of_hold = [
        ("held returned", count()),
        ("undo_left_seconds", time()),
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
                ("matched deleted", count()),
            ]),
        ),
    ];
    all.map(|(name, schema)| (name.to_owned(), schema))
        .into_iter()
        .collect()
}

fn server() -> Value {
    object(&[
        ("version protocol id", text()),
        ("pid uptime_seconds puts timeouts job_size_max", count()),
        ("tubes connections producers", count()),
        ("workers waiting", count()),
        ("draining", flag()),
        ("jobs", reference("Counts")),
        ("memory", reference("Memory")),
        ("log", or_null(reference("Log"))),
        ("archive", or_null(reference("Archive"))),
        ("archives", list(reference("Archive"))),
    ])
}

fn log() -> Value {
    object(&log_fields())
}

fn log_fields() -> Vec<(&'static str, Value)> {
    vec![
        ("live_bytes dead_bytes reserved_bytes", count()),
        ("unsynced_bytes segments first_segment", count()),
        ("current_segment records_written records_migrated", count()),
        ("compactions", count()),
        ("compacting", flag()),
        ("missing_bytes", or_null(count())),
    ]
}

fn archive() -> Value {
    object(&[
        ("url", text()),
        ("up in_gap rests", flag()),
        ("trouble archived member", or_null(text())),
        ("epoch base_percent", or_null(count())),
        ("last_base_timestamp_seconds", or_null(count())),
        ("lag_bytes gaps links bytes bases errors", count()),
        ("lag_seconds", time()),
        ("joins", or_null(reference("ArchiveJoins"))),
    ])
}

/// The log, file by file.
fn log_files() -> Value {
    let place = object(&[("begin", count()), ("end", count())]);
    let file = object(&[
        ("name", text()),
        ("first_segment last_segment rewritten size", count()),
        ("live_bytes dead_bytes", count()),
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
        ("archives", list(reference("Archive"))),
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
        ("users watchers waiting puts deletes pauses", count()),
        ("pause_left_seconds oldest_ready_age_seconds", time()),
        ("tally", or_null(reference("Tally"))),
    ]
}

/// What has happened in a tube since it began, and how long it took.
fn tally() -> Value {
    let times = object(&[
        ("jobs", count()),
        ("p50_seconds p95_seconds p99_seconds", time()),
    ]);
    object(&[
        ("reserves releases buries kicks timeouts fails", count()),
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
            ("tube set_for", or_null(text())),
            ("policy", or_null(reference("PolicyShown"))),
        ],
        &[
            ("jobs bytes set_aside puts_refused", count()),
            ("failures", object(&failures)),
            ("dead_letters_of", list(text())),
        ],
    )
}

fn schedule() -> Value {
    object(&[
        ("name cron tz tube", text()),
        ("priority ttr body_size waiting", count()),
        ("key fired_up_to", or_null(text())),
        ("missed", one_of(&schedules::MISSED)),
        ("paused", flag()),
        ("body", or_null(reference("Body"))),
        ("next_firings", list(text())),
    ])
}

fn new_schedule() -> Value {
    open_object(
        &[("cron tube", text()), ("body", reference("Bytes"))],
        &[
            ("tz key", or_null(text())),
            ("priority ttr", or_null(count())),
            ("missed", or_null(one_of(&schedules::MISSED))),
            ("paused", or_null(flag())),
        ],
    )
}

fn client() -> Value {
    open_object(
        &[
            ("id unread_bytes watched_tubes", count()),
            ("address name", or_null(text())),
            ("uses", text()),
            ("has_reserved waits producer worker", flag()),
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
            ("id read_bytes log_bytes", count()),
            ("state", one_of(&["reading", "done"])),
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
            ("after before", or_null(text())),
            ("file what", text()),
            ("offset size", count()),
            ("salvaged", flag()),
        ],
        &[
            ("tube", text()),
            ("ttr body_size", count()),
            ("job", reference("JobThen")),
        ],
    )
}

fn job_then() -> Value {
    object(&[
        ("state", one_of(LISTED)),
        ("priority delay reserves timeouts releases buries", count()),
        ("kicks", count()),
        ("due", or_null(text())),
    ])
}

fn job() -> Value {
    let needed = [
        ("id priority delay ttr reserves timeouts releases", count()),
        ("buries kicks body_size", count()),
        ("deliveries", count()),
        ("tube", text()),
        ("state", one_of(&["ready", "reserved", "delayed", "buried"])),
        ("age_seconds", time()),
        ("time_left_seconds", or_null(time())),
        ("reserved_by", or_null(count())),
        ("body", or_null(reference("Body"))),
    ];
    let others = [
        ("key group dead_lettered_from dead_lettered_at", text()),
        ("unique", one_of(&["exists", "waiting"])),
        ("reason", one_of(&reasons())),
        ("text", reference("Body")),
        ("failures", count()),
    ];
    open_object(&needed, &others)
}
