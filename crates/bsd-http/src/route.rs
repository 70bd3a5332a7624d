//! Routes: role, action, and the shapes of request and answer. The tables of them are in `routes`
//! and in `console`.

use hyper::{Method, StatusCode};

/// Role of a caller. A greater role includes the lesser ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Role {
    /// Nothing that needs a token.
    Anyone,
    /// Look.
    Read,
    /// Change jobs and tubes too.
    Admin,
}

/// Action of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    Health,
    Readiness,
    Metrics,
    Description,
    Server,
    Trouble,
    Ranking,
    Why,
    Tubes,
    Tube,
    Job,
    History,
    Log,
    CancelHistory,
    Jobs,
    Policies,
    Policy,
    SetPolicy,
    RemovePolicy,
    Schedules,
    Schedule,
    SetSchedule,
    DeleteSchedule,
    RunSchedule,
    /// The pause or the resume that the last part of the path names.
    PauseSchedule,
    Clients,
    Client,
    CloseClient,
    Put,
    Delete,
    /// The change of one job that the last part of the path names.
    Change,
    Release,
    Pause,
    PauseMany,
    Tasks,
    Task,
    StartTask,
    CancelTask,
    UndoTask,
    Search,
    Searches,
    Found,
    CancelSearch,
    Clear,
    Redrive,
    Drain,
    Undrain,
    NoteCheck,
    Standby,
    Promote,
    ArchiveBase,
    MakeBase,
    Leader,
    Cluster,
    /// The change of the cluster that the last part of the path names.
    Steer,
    Events,
    /// A page of the console.
    Console(Page),
}

impl Action {
    /// It changes jobs, or whether they are taken, or has the archive written: of a cluster the leader
    /// alone does that.
    pub(super) fn is_of_leader(self) -> bool {
        match self {
            Action::Put
            | Action::Delete
            | Action::Change
            | Action::Release
            | Action::CloseClient
            | Action::Pause
            | Action::PauseMany
            | Action::SetPolicy
            | Action::RemovePolicy
            | Action::SetSchedule
            | Action::DeleteSchedule
            | Action::RunSchedule
            | Action::PauseSchedule
            | Action::StartTask
            | Action::UndoTask
            | Action::Clear
            | Action::Redrive
            | Action::Drain
            | Action::Undrain
            | Action::MakeBase => true,
            Action::Console(page) => page.changes_jobs(),
            _ => false,
        }
    }
}

/// A page of the console, or what belongs to one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Page {
    Overview,
    Tubes,
    Tube,
    Schedules,
    Schedule,
    AskDeleteSchedule,
    Job,
    Past,
    /// The body of a job, as a file.
    Body,
    Delete,
    Durability,
    Cluster,
    Clients,
    Client,
    Tasks,
    Task,
    Find,
    Found,
    Events,
    Login,
    Asset(Asset),
    // What forms send.
    Enter,
    Leave,
    Put,
    /// This, of one job.
    Change(&'static str),
    CloseClient,
    Pause,
    SetPolicy,
    RemovePolicy,
    SetSchedule,
    /// This, of one schedule.
    ChangeSchedule(&'static str),
    Count,
    Run,
    Cancel,
    Undo,
    StopSearch,
}

impl Page {
    /// Of a cluster the leader answers it. The others belong to the member that was asked.
    pub(super) fn is_of_cluster(self) -> bool {
        use Page::{Asset, Cluster, Enter, Leave, Login};
        !matches!(self, Asset(_) | Cluster | Enter | Leave | Login)
    }

    /// It is sent by a form that changes jobs, or begins what does.
    pub(super) fn changes_jobs(self) -> bool {
        use Page::{Change, ChangeSchedule, CloseClient, Pause, Put, RemovePolicy, Run};
        use Page::{SetPolicy, SetSchedule, Undo};
        let is_of_tube = matches!(self, Put | Pause | SetPolicy | RemovePolicy);
        let is_of_schedule = matches!(self, SetSchedule | ChangeSchedule(_));
        is_of_tube || is_of_schedule || matches!(self, Change(_) | CloseClient | Run | Undo)
    }
}

/// A file of the console that never changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asset {
    Style,
    Script,
    Icon,
}

/// Shape of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// The schema of this name.
    Json(&'static str),
    /// An object of any kind.
    Any,
    Metrics,
    /// Server-sent events, of this schema.
    Events(&'static str),
    /// For a browser, which shows its token by a cookie.
    Page,
}

/// A parameter of the query (behind the `?`).
#[derive(Debug, Clone, Copy)]
pub(super) struct Parameter {
    pub(super) name: &'static str,
    pub(super) help: &'static str,
    pub(super) kind: Kind,
}

/// Kind of the value of a parameter.
#[derive(Debug, Clone, Copy)]
pub(super) enum Kind {
    Text,
    Number { min: u64, max: u64 },
    Word(&'static [&'static str]),
}

impl Parameter {
    pub(super) const fn text(name: &'static str, help: &'static str) -> Parameter {
        let kind = Kind::Text;
        Parameter { name, help, kind }
    }

    pub(super) const fn word(
        name: &'static str,
        help: &'static str,
        words: &'static [&'static str],
    ) -> Parameter {
        let kind = Kind::Word(words);
        Parameter { name, help, kind }
    }

    pub(super) const fn number(
        name: &'static str,
        help: &'static str,
        min: u64,
        max: u64,
    ) -> Parameter {
        let kind = Kind::Number { min, max };
        Parameter { name, help, kind }
    }
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
    /// Its name among all, and what it does, for the description.
    pub(super) id: &'static str,
    pub(super) summary: &'static str,
    pub(super) parameters: &'static [Parameter],
    /// The schema of the body that is sent, if one is.
    pub(super) takes: Option<&'static str>,
    pub(super) shape: Shape,
    /// The status of an answer that is no problem.
    pub(super) status: StatusCode,
    /// It may also be 202: the same, as far as it is known.
    pub(super) may_be_later: bool,
}

pub(super) const fn route(
    method: Method,
    path: &'static str,
    role: Role,
    action: Action,
    shape: Shape,
) -> Route {
    Route {
        method,
        path,
        role,
        action,
        id: "",
        summary: "",
        parameters: &[],
        takes: None,
        shape,
        status: StatusCode::OK,
        may_be_later: false,
    }
}

/// A route on which nothing is changed.
pub(super) const fn look(path: &'static str, role: Role, action: Action, shape: Shape) -> Route {
    route(Method::GET, path, role, action, shape)
}

impl Route {
    /// It changes nothing that lasts: anyone who may look may do it.
    pub(super) const fn lasting_nothing(mut self) -> Route {
        self.role = Role::Read;
        self
    }

    pub(super) const fn named(mut self, id: &'static str, summary: &'static str) -> Route {
        (self.id, self.summary) = (id, summary);
        self
    }

    /// The schema of the body that is sent, and that of the answer.
    pub(super) const fn json(mut self, takes: &'static str, answer: &'static str) -> Route {
        (self.takes, self.shape) = (Some(takes), Shape::Json(answer));
        self
    }

    pub(super) const fn answering(mut self, status: StatusCode) -> Route {
        self.status = status;
        self
    }

    pub(super) const fn or_later(mut self) -> Route {
        self.may_be_later = true;
        self
    }

    pub(super) const fn taking(mut self, parameters: &'static [Parameter]) -> Route {
        self.parameters = parameters;
        self
    }
}

impl Route {
    /// The part of a path at the place of this one's braces, as it was sent.
    pub(super) fn captured<'a>(&self, path: &'a str) -> Option<&'a str> {
        let mut pairs = self.path.split('/').zip(path.split('/'));
        let found = pairs.find(|(wanted, _)| wanted.starts_with('{'));
        found.map(|(_, segment)| segment)
    }

    /// It is sent by a form of the console.
    pub(super) fn is_form(&self) -> bool {
        self.shape == Shape::Page && self.method != Method::GET
    }

    /// It is answered for as long as someone listens.
    pub(super) fn is_stream(&self) -> bool {
        matches!(self.action, Action::Events | Action::Console(Page::Events))
    }

    /// Requests of supervisors, load balancers and Prometheus: there are always places for them.
    pub(super) fn is_probe(&self) -> bool {
        use Action::{Health, Leader, Metrics, Readiness};
        matches!(self.action, Health | Readiness | Leader | Metrics)
    }

    /// The last segment of its path.
    pub(super) fn last(&self) -> &'static str {
        self.path.rsplit('/').next().unwrap_or_default()
    }
}
