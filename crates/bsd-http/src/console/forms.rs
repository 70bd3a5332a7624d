//! Forms and their effects. Each does the same as a request to the API, by the same function; then
//! the browser is sent to a page that tells the result.
//!
//! A form has to come from this server: the guard has looked at its origin, and beside that it brings
//! a word that stands in the pages of this process alone, and that no other site can read.

use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;
use serde_json::{Map, Value, json};
use tokio::time::sleep;

use super::{Asked, Page, go_to, login, schedules as pages, search, words};
use crate::State;
use crate::answer::{Answer, Problem, Said};
use crate::api::fields::Fields;
use crate::api::undo::{HELD_MAX, UNDO_SECONDS};
use crate::api::{self, clients, jobs, policies, schedules, tasks};
use crate::guard::Asker;
use crate::query::decode;
use bsd_net::secrets::is_same;

/// How often it is looked whether a count is done, before the browser is told to look itself.
const LOOKS: u32 = 20;
const LOOK_EVERY: Duration = Duration::from_millis(15);

/// Names and values.
#[derive(Debug, Default)]
pub(super) struct Form(Vec<(String, String)>);

impl Form {
    fn parse(bytes: &[u8]) -> Result<Form, Problem> {
        let text = std::str::from_utf8(bytes).map_err(|_| bad("a form is UTF-8"))?;
        let pairs = text.split('&').filter(|pair| !pair.is_empty());
        let pairs = pairs.map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = decode(&value.replace('+', " "))?;
            Ok((decode(&name.replace('+', " "))?, value))
        });
        pairs.collect::<Result<_, _>>().map(Form)
    }

    /// A value; `None` where nothing was filled in.
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        let found = self.0.iter().find(|(it, _)| it == name);
        found
            .map(|(_, value)| &**value)
            .filter(|value| !value.is_empty())
    }

    /// All values of a name.
    fn texts(&self, name: &str) -> Vec<&str> {
        let found = self.0.iter().filter(|(it, _)| it == name);
        found.map(|(_, value)| &**value).collect()
    }

    /// The ids of the jobs that were selected: at least one.
    fn selected(&self) -> Result<Vec<u64>, Problem> {
        let ids = self.texts("id").into_iter().map(str::parse);
        let ids: Vec<u64> = ids
            .collect::<Result<_, _>>()
            .map_err(|_| bad("a job's id is a number"))?;
        match ids.is_empty() {
            true => Err(bad("no job is selected; go back and tick one")),
            false => Ok(ids),
        }
    }

    fn number(&self, name: &str) -> Result<Option<u64>, Problem> {
        let parse = |text: &str| {
            let number = text.trim().parse();
            number.map_err(|_| bad(format!("{name} is a whole number, not {text:?}")))
        };
        self.text(name).map(parse).transpose()
    }

    /// It comes from a page of this process.
    fn check(&self, word: &str) -> Result<(), Problem> {
        let sent = self.text("form").unwrap_or_default();
        match is_same(sent.as_bytes(), word.as_bytes()) {
            true => Ok(()),
            false => Err(Problem::new(
                StatusCode::FORBIDDEN,
                "this form is from before the server started, or not of its own; load the page \
                 again and send it from there",
            )),
        }
    }
}

fn bad(detail: impl Into<String>) -> Problem {
    Problem::new(StatusCode::BAD_REQUEST, detail)
}

/// Fields of the request to the API.
fn fields(of: Map<String, Value>) -> Result<Fields, Problem> {
    Fields::parse(Value::Object(of).to_string().as_bytes())
}

/// The form stands in a page of this process.
pub(super) fn is_of_here(body: &[u8], word: &str) -> bool {
    Form::parse(body).is_ok_and(|form| form.check(word).is_ok())
}

/// Do what a form wants.
pub(super) async fn answer(
    page: Page,
    mut asked: Asked,
    state: &Arc<State>,
) -> Result<Answer, Problem> {
    let form = Form::parse(&std::mem::take(&mut asked.body))?;
    form.check(&state.console.form_word)?;
    let done = match page {
        Page::Enter => login::enter(state, form.text("token"), form.text("to")),
        Page::Leave => Ok(login::leave(state, &asked)),
        Page::Put => put(state, asked.captured, &form).await,
        Page::Change("delete") if form.text("undo").is_some() => {
            delete_one(state, &asked.captured, &form, asked.asker).await
        }
        Page::Change(word) => change(state, &asked.captured, word, &form).await,
        Page::CloseClient => close(state, &asked.captured, &form).await,
        Page::Pause => pause(state, asked.captured, &form).await,
        Page::SetPolicy => set_policy(state, asked.captured, &form).await,
        Page::RemovePolicy => remove_policy(state, asked.captured).await,
        Page::SetSchedule => set_schedule(state, &form).await,
        Page::ChangeSchedule(word) => change_schedule(state, asked.captured, word).await,
        Page::Count => count(state, &asked.captured, &form, asked.asker).await,
        Page::Run => run(state, &asked.captured, &form, asked.asker),
        Page::Undo => undo(state, &asked.captured, asked.asker),
        Page::Cancel => cancel(state, &asked.captured, asked.asker),
        Page::StopSearch => search::cancel(state, &asked),
        _ => Err(bad("there is no such form")),
    };
    state.snapshots.forget().await;
    done
}

/// Send the browser to a page that says this, and keep what the answer says for the audit line.
fn tell(state: &State, path: &str, sentence: String, said: Option<&Said>) -> Answer {
    let word = state.console.tell(sentence);
    let answer = go_to(&format!("{path}?said={word}"));
    said.cloned().unwrap_or_default().with(answer)
}

async fn put(state: &State, tube: String, form: &Form) -> Result<Answer, Problem> {
    // A browser ends the lines of a text with CR LF, whatever they ended with.
    let body = form.text("body").unwrap_or_default().replace("\r\n", "\n");
    let mut sent = Map::new();
    sent.insert("body".into(), json!({"data": body}));
    for name in ["priority", "delay", "ttr"] {
        sent.insert(name.into(), json!(form.number(name)?));
    }
    let done = jobs::put(&state.doorway, tube.clone(), &fields(sent)?).await?;
    let id = done.body().value()["id"].clone();
    let sentence = format!("Job {id} was put into {tube}.");
    Ok(tell(
        state,
        &format!("/jobs/{id}"),
        sentence,
        done.extensions().get(),
    ))
}

async fn change(
    state: &State,
    id: &str,
    word: &'static str,
    form: &Form,
) -> Result<Answer, Problem> {
    let mut sent = Map::new();
    match word {
        "delay" | "priority" => {
            sent.insert(word.into(), json!(form.number(word)?));
        }
        "move" => {
            sent.insert("to".into(), json!(form.text("to")));
            sent.insert("kick".into(), json!(form.text("kick").is_some()));
        }
        _ => {}
    }
    let sent = fields(sent)?;
    let done = match word {
        "release" => jobs::release(&state.doorway, id, &sent).await?,
        word => jobs::change(&state.doorway, id, word, &sent).await?,
    };
    let path = match word {
        "delete" => match form.text("tube") {
            Some(tube) => format!("/tubes/{}", words::escaped(tube)),
            None => "/tubes".to_owned(),
        },
        _ => format!("/jobs/{id}"),
    };
    let sentence = match word {
        "delete" => format!("Job {id} was deleted."),
        "kick" => format!("Job {id} was kicked."),
        "bury" => format!("Job {id} was buried."),
        "release" => format!("Job {id} was released."),
        "redrive" => format!("Job {id} was sent back."),
        "move" => format!("Job {id} was moved."),
        other => format!("The {other} of job {id} was changed."),
    };
    Ok(tell(state, &path, sentence, done.extensions().get()))
}

async fn close(state: &State, id: &str, form: &Form) -> Result<Answer, Problem> {
    let done = clients::close(&state.doorway, id, form.text("address")).await?;
    let sentence = format!("The connection of client {id} is closed.");
    Ok(tell(state, "/clients", sentence, done.extensions().get()))
}

async fn pause(state: &State, tube: String, form: &Form) -> Result<Answer, Problem> {
    let seconds = form.number("seconds")?;
    let mut sent = Map::new();
    sent.insert("seconds".into(), json!(seconds));
    let path = format!("/tubes/{}", words::escaped(&tube));
    let sentence = match seconds {
        Some(0) => format!("The pause of {tube} is over."),
        seconds => format!(
            "{tube} is paused for {}.",
            words::seconds(seconds.unwrap_or(0))
        ),
    };
    let done = jobs::pause(&state.doorway, tube, &fields(sent)?).await?;
    Ok(tell(state, &path, sentence, done.extensions().get()))
}

/// What is left empty has its default.
async fn set_policy(state: &State, tube: String, form: &Form) -> Result<Answer, Problem> {
    let values = policies::names().filter_map(|name| {
        let value = form.text(name)?.trim();
        Some((name.to_owned(), json!(value)))
    });
    let sent = fields(values.collect())?;
    let path = format!("/tubes/{}", words::escaped(&tube));
    let sentence = format!("{tube} has this policy now.");
    let done = policies::set(&state.doorway, tube, &sent).await?;
    Ok(tell(state, &path, sentence, done.extensions().get()))
}

async fn remove_policy(state: &State, tube: String) -> Result<Answer, Problem> {
    let done = policies::remove(&state.doorway, tube.clone()).await?;
    let sentence = format!("{tube} has no policy of its own any more.");
    let path = format!("/tubes/{}", words::escaped(&tube));
    // An empty tube may be gone with it.
    let found = policies::look(&state.doorway, tube).await;
    let path = if found.is_ok_and(|it| it["jobs"] != 0) {
        &path
    } else {
        "/tubes"
    };
    Ok(tell(state, path, sentence, done.extensions().get()))
}

async fn set_schedule(state: &State, form: &Form) -> Result<Answer, Problem> {
    let name = form.text("schedule").unwrap_or_default().trim().to_owned();
    let body = match form.text("keep") {
        None => json!({"data": form.text("body").unwrap_or_default().replace("\r\n", "\n")}),
        Some(_) => {
            let found = schedules::look(&state.doorway, name.clone()).await?;
            found.value["body"].clone()
        }
    };
    let mut sent = Map::new();
    sent.insert("body".into(), body);
    for of in ["cron", "tz", "tube", "key", "missed"] {
        sent.insert(of.into(), json!(form.text(of).map(str::trim)));
    }
    for of in ["priority", "ttr"] {
        sent.insert(of.into(), json!(form.number(of)?));
    }
    sent.insert("paused".into(), json!(form.text("paused").is_some()));
    let path = pages::path(&name, "");
    let sentence = format!("Schedule {name} is set.");
    let done = schedules::set(&state.doorway, name, &fields(sent)?).await?;
    Ok(tell(state, &path, sentence, done.extensions().get()))
}

async fn change_schedule(
    state: &State,
    name: String,
    word: &'static str,
) -> Result<Answer, Problem> {
    let (doorway, none) = (&state.doorway, Fields::default());
    let path = pages::path(&name, "");
    let (done, path, sentence) = match word {
        "run" => {
            let done = schedules::run_now(doorway, name.clone(), &none).await?;
            let id = done.body().value()["id"].clone();
            let sentence = format!("Job {id} was put by schedule {name}.");
            (done, format!("/jobs/{id}"), sentence)
        }
        "delete" => {
            let sentence = format!("Schedule {name} was deleted.");
            let done = schedules::delete(doorway, name).await?;
            (done, "/schedules".to_owned(), sentence)
        }
        word => {
            let is_pause = word == "pause";
            let sentence = match is_pause {
                true => format!("Schedule {name} is paused."),
                false => format!("Schedule {name} puts again."),
            };
            let done = schedules::set_paused(doorway, name, is_pause, &none).await?;
            (done, path, sentence)
        }
    };
    Ok(tell(state, &path, sentence, done.extensions().get()))
}

/// Count the selected jobs. The page then asks for confirmation, with their number.
async fn count(state: &State, tube: &str, form: &Form, asker: Asker) -> Result<Answer, Problem> {
    let action = form.text("what").unwrap_or_default();
    let mut filter = json!({"tube": tube, "states": form.texts("state")});
    if let Some(contains) = form.text("with") {
        filter["contains"] = json!({"data": contains});
    }
    if let Some(said) = form.text("said") {
        filter["text"] = json!({"data": said});
    }
    for (name, field) in [("reason", "reason"), ("from", "dead_lettered_from")] {
        if let Some(value) = form.text(name) {
            filter[field] = json!(value);
        }
    }
    if form.text("selection").is_some() {
        filter["ids"] = json!(form.selected()?);
    }
    for name in ["age_min_seconds", "priority_min", "priority_max"] {
        if let Some(number) = form.number(name)? {
            filter[name] = json!(number);
        }
    }
    let mut sent = Map::new();
    sent.insert("action".into(), json!(action));
    sent.insert("filter".into(), filter);
    sent.insert("dry_run".into(), json!(true));
    sent.insert("rate".into(), json!(form.number("rate")?));
    match action {
        "delay" | "priority" => {
            sent.insert(action.into(), json!(form.number(action)?));
        }
        "move" => {
            sent.insert("to".into(), json!(form.text("to")));
            sent.insert("kick".into(), json!(form.text("kick").is_some()));
        }
        _ => {}
    }
    let begun = tasks::start(&state.doorway, &state.tasks, &fields(sent)?, asker)?;
    let id = begun.body().value()["id"].to_string();
    wait_while(state, &id, &["counting"]).await?;
    let said = begun.extensions().get::<Said>();
    Ok(said
        .cloned()
        .unwrap_or_default()
        .with(go_to(&format!("/tasks/{id}"))))
}

/// Wait for a moment while a task is in one of these states, and look at it.
async fn wait_while(state: &State, id: &str, states: &[&str]) -> Result<Value, Problem> {
    for _ in 0..LOOKS {
        let task = state.tasks.show(id)?.body().value();
        if !states.contains(&task["state"].as_str().unwrap_or_default()) {
            return Ok(task);
        }
        sleep(LOOK_EVERY).await;
    }
    Ok(state.tasks.show(id)?.body().value())
}

/// Delete one job, which can be undone. A job that is not there, or not anyone's to delete, is refused as
/// without that.
async fn delete_one(state: &State, id: &str, form: &Form, asker: Asker) -> Result<Answer, Problem> {
    let ids = [api::job_id(id)?.0];
    let mut sent = Map::new();
    sent.insert("action".into(), json!("delete"));
    sent.insert("filter".into(), json!({"tube": "*", "ids": ids}));
    sent.insert("undo".into(), json!(UNDO_SECONDS));
    let begun = tasks::start(&state.doorway, &state.tasks, &fields(sent)?, asker)?;
    let task = begun.body().value()["id"].to_string();
    let found = wait_while(state, &task, &["counting", "running"]).await?;
    if found["state"] == "done" && found["matched"] == 0 {
        return change(state, id, "delete", form).await;
    }
    let said = begun.extensions().get::<Said>().cloned();
    let said = said.unwrap_or_default();
    Ok(said.with(go_to(&format!("/tasks/{task}"))))
}

/// Do what a task has counted for, if no more jobs are meant than the page has shown.
fn run(state: &State, id: &str, form: &Form, asker: Asker) -> Result<Answer, Problem> {
    let counted = state.tasks.show(id)?.body().value();
    if counted["dry_run"] != true || counted["state"] != "done" {
        return Err(Problem::new(
            StatusCode::CONFLICT,
            "this task has not counted, or has done more than that",
        ));
    }
    let most = form.number("most")?;
    let most = most.ok_or_else(|| bad("it is not said how many jobs the page has shown"))?;
    let names = [
        "action", "filter", "rate", "delay", "priority", "to", "kick",
    ];
    let sent = names.iter().filter_map(|name| {
        let value = counted.get(*name)?.clone();
        Some(((*name).to_owned(), value))
    });
    let mut sent: Map<_, _> = sent.collect();
    sent.insert("most".into(), json!(most));
    if form.text("undo").is_some() && counted["action"] == "delete" && most <= HELD_MAX {
        sent.insert("undo".into(), json!(UNDO_SECONDS));
    }
    let begun = tasks::start(&state.doorway, &state.tasks, &fields(sent)?, asker)?;
    let id = begun.body().value()["id"].clone();
    // Its page says how far it is, which may be its end by now.
    let said = begun.extensions().get::<Said>().cloned();
    Ok(said
        .unwrap_or_default()
        .with(go_to(&format!("/tasks/{id}"))))
}

fn undo(state: &State, id: &str, asker: Asker) -> Result<Answer, Problem> {
    let done = state.tasks.undo(id, asker)?;
    let sentence = "Its jobs are brought back.".to_owned();
    let path = format!("/tasks/{id}");
    Ok(tell(state, &path, sentence, done.extensions().get()))
}

fn cancel(state: &State, id: &str, asker: Asker) -> Result<Answer, Problem> {
    let done = state.tasks.cancel(id, asker)?;
    let sentence = "It ends where it is; what it has done stays.".to_owned();
    Ok(tell(
        state,
        &format!("/tasks/{id}"),
        sentence,
        done.extensions().get(),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_is_names_and_values_and_what_is_empty_is_not_there() {
        let form = Form::parse(b"a=x+y%2B%0D%0Az&b=&state=ready&state=buried&n=+7+").unwrap();
        assert_eq!(form.text("a"), Some("x y+\r\nz"));
        assert_eq!(form.text("b"), None);
        assert_eq!(form.texts("state"), ["ready", "buried"]);
        assert_eq!(form.number("n").unwrap(), Some(7));
        assert_eq!(form.number("b").unwrap(), None);
        assert!(form.number("a").is_err());
        assert!(Form::parse(b"a=%zz").is_err());
    }

    #[test]
    fn a_form_without_the_word_of_this_process_is_refused() {
        for (sent, is_right) in [("form=word", true), ("form=wore", false), ("", false)] {
            let form = Form::parse(sent.as_bytes()).unwrap();
            assert_eq!(form.check("word").is_ok(), is_right, "{sent}");
        }
    }
}
