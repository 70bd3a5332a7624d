//! The live view: draws what the thread that asks has last seen, and follows the keys.

use std::io;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::thread;
use std::time::Duration;

use bsd_tools::client::ClientError;
use bsd_tools::human::Look;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Block, Clear, List, ListState, Paragraph};
use ratatui::{DefaultTerminal, Frame};

use super::TopArgs;
use super::keys::Key;
use super::rates::{self, Columns, View};
use super::sample::{Sample, Sampler};
use super::wait::{Awake, Bell, Waiter, waiter};
use crate::tubes::Sort;
use crate::{EXIT_OK, Failure};

const HEAD_LINES: u16 = 6;

const HELP: [&str; 12] = [
    "q, Esc, Ctrl-C   quit",
    "h, ?             this help, on and off",
    "a                all rates of tubes, or their states",
    "s                the next sort key",
    "r                the other way round",
    "n                sort by name",
    "e                sort by ready",
    "u  d  v          sort by urgent, delayed, reserved",
    "b  w  t          sort by buried, waiting, rates",
    "up, down         one tube",
    "page up, down    ten tubes",
    "home, end        first, last tube",
];

/// A key, and its sort order; in the order in which `s` goes through them.
const SORTS: [(char, Sort); 8] = [
    ('t', Sort::Total),
    ('n', Sort::Name),
    ('e', Sort::Ready),
    ('u', Sort::Urgent),
    ('d', Sort::Delayed),
    ('v', Sort::Reserved),
    ('b', Sort::Buried),
    ('w', Sort::Waiting),
];

type Round = Result<Sample, ClientError>;

pub(super) fn run(args: &TopArgs, sampler: Sampler) -> Result<u8, Failure> {
    let (mut waiter, bell) = waiter().map_err(unusable)?;
    let rounds = ask_beside(sampler, args.interval, bell);
    let mut terminal = ratatui::try_init().map_err(unusable)?;
    let mut screen = Screen::new(args);
    let done = screen.run(&mut terminal, &rounds, &mut waiter);
    // Also a terminal that has gone: someone else may have it open.
    let restored = ratatui::try_restore();
    done.and(restored).map_err(unusable)?;
    Ok(EXIT_OK)
}

fn unusable(error: io::Error) -> Failure {
    Failure::Input(format!(
        "the terminal cannot be used: {error}; --batch N prints N rounds as lines"
    ))
}

/// Ask in a thread, which ends when no one takes its results. The process does not wait for it.
fn ask_beside(mut sampler: Sampler, interval: Duration, bell: Bell) -> Receiver<Round> {
    let (sender, rounds): (SyncSender<Round>, _) = sync_channel(1);
    thread::spawn(move || {
        while sender.send(sampler.take()).is_ok() {
            bell.ring();
            thread::sleep(interval);
        }
    });
    rounds
}

/// Content and layout of the screen.
struct Screen {
    sort: Sort,
    is_reversed: bool,
    columns: Columns,
    is_help: bool,
    is_coloured: bool,
    before: Option<Sample>,
    now: Option<Sample>,
    /// The trouble with the server, until it answers again.
    trouble: Option<String>,
    selected: ListState,
    is_over: bool,
}

impl Screen {
    fn new(args: &TopArgs) -> Screen {
        Screen {
            sort: args.sort,
            is_reversed: args.reverse,
            columns: args.columns(),
            is_help: false,
            is_coloured: Look::of_stdout().has_colour(),
            before: None,
            now: None,
            trouble: None,
            selected: ListState::default().with_selected(Some(0)),
            is_over: false,
        }
    }

    fn run(
        &mut self,
        terminal: &mut DefaultTerminal,
        rounds: &Receiver<Round>,
        waiter: &mut Waiter,
    ) -> io::Result<()> {
        while !self.is_over {
            terminal.draw(|frame| self.draw(frame))?;
            match waiter.wait()? {
                Awake::Keys(keys) => keys.into_iter().for_each(|key| self.press(key)),
                Awake::Stop => self.is_over = true,
                Awake::Gone => return Err(io::Error::other("it has gone")),
            }
            self.take(rounds);
        }
        Ok(())
    }

    /// The newest round, if there is one.
    fn take(&mut self, rounds: &Receiver<Round>) {
        match rounds.try_recv() {
            Ok(Ok(sample)) => {
                self.trouble = None;
                self.before = self.now.replace(sample);
            }
            Ok(Err(error)) => {
                self.trouble = Some(format!("trying again: {error}"));
            }
            Err(TryRecvError::Empty | TryRecvError::Disconnected) => {}
        }
    }

    fn press(&mut self, key: Key) {
        match key {
            Key::Escape if self.is_help => self.is_help = false,
            Key::Char('q') | Key::Escape | Key::CtrlC => self.is_over = true,
            Key::Char('h' | '?') => self.is_help = !self.is_help,
            Key::Char('a') => self.columns = self.columns.other(),
            Key::Char('r') => self.is_reversed = !self.is_reversed,
            Key::Char('s') => self.sort = next_sort(self.sort),
            Key::Char(letter) => {
                let found = SORTS.iter().find(|(key, _)| *key == letter);
                self.sort = found.map_or(self.sort, |(_, sort)| *sort);
            }
            Key::Up => self.selected.scroll_up_by(1),
            Key::Down => self.selected.scroll_down_by(1),
            Key::PageUp => self.selected.scroll_up_by(10),
            Key::PageDown => self.selected.scroll_down_by(10),
            Key::Home => self.selected.select_first(),
            Key::End => self.selected.select_last(),
        }
    }

    fn draw(&mut self, frame: &mut Frame<'_>) {
        let rows = [
            Constraint::Length(HEAD_LINES),
            Constraint::Length(1),
            Constraint::Min(0),
            Constraint::Length(1),
        ];
        let [head, titles, tubes, foot] = Layout::vertical(rows).areas(frame.area());
        let view = self
            .now
            .as_ref()
            .map(|now| View::between(self.before.as_ref(), now, self.sort, self.is_reversed));
        match &view {
            Some(view) => {
                let lines: Vec<Line<'_>> = view.head().map(Line::from).collect();
                frame.render_widget(Paragraph::new(lines), head);
                let lines = view.tubes.iter().map(|tube| tube.line(self.columns));
                let list = List::new(lines).highlight_style(Modifier::BOLD);
                frame.render_stateful_widget(list, tubes, &mut self.selected);
            }
            None => frame.render_widget("waiting for the server", head),
        }
        frame.render_widget(
            Line::from(rates::titles(self.columns)).style(Modifier::REVERSED),
            titles,
        );
        frame.render_widget(self.foot(), foot);
        if self.is_help {
            draw_help(frame);
        }
    }

    fn foot(&self) -> Line<'static> {
        match &self.trouble {
            Some(trouble) => {
                let style = match self.is_coloured {
                    true => Style::new().red().bold(),
                    false => Style::new().bold(),
                };
                Line::styled(trouble.clone(), style)
            }
            None => {
                let order = if self.is_reversed { ", reversed" } else { "" };
                let sort = format!("{:?}", self.sort).to_lowercase();
                Line::from(format!(
                    "sorted by {sort}{order}    q quit  h help  a rates  s sort  r reverse"
                ))
            }
        }
    }
}

fn next_sort(sort: Sort) -> Sort {
    let at = SORTS.iter().position(|(_, it)| *it == sort).unwrap_or(0);
    SORTS[(at + 1) % SORTS.len()].1
}

fn draw_help(frame: &mut Frame<'_>) {
    let screen = frame.area();
    let width = 52.min(screen.width);
    let height = (HELP.len() as u16 + 2).min(screen.height);
    let area = Rect {
        x: (screen.width - width) / 2,
        y: (screen.height - height) / 2,
        width,
        height,
    };
    let lines: Vec<Line<'_>> = HELP.into_iter().map(Line::from).collect();
    frame.render_widget(Clear, area);
    frame.render_widget(
        Paragraph::new(lines).block(Block::bordered().title(" help ")),
        area,
    );
}
