//! Random commands for [`Pair`], the whole protocol and its malformed neighbours.
//!
//! Every command here has exactly one reply. Delays, pauses and times to run are either 0 or far
//! longer than a run, so nothing becomes due by itself; a client waits only while the one command
//! comes that ends its waiting, and never two at once.

use crate::pair::Pair;
use bsd::random::Random;

const CONNECTIONS: [&str; 4] = ["a", "b", "c", "d"];
const TUBES: [&str; 6] = [
    "default",
    "t1",
    "t2",
    "emails",
    "a/b;c.d$e_(f)+g-",
    "{n*200}",
];
const BLANKS: [&str; 6] = [" ", " ", " ", " ", " ", "  "];
const WORDS: [&str; 24] = [
    "auth ",
    "put ",
    "peek ",
    "peek-ready",
    "peek-delayed",
    "peek-buried",
    "reserve-job ",
    "delete ",
    "release ",
    "bury ",
    "kick ",
    "kick-job ",
    "touch ",
    "stats-job ",
    "stats-tube ",
    "stats",
    "use ",
    "watch ",
    "ignore ",
    "list-tubes-watched",
    "list-tube-used",
    "list-tubes",
    "pause-tube",
    "nonsense",
];
/// Those of them that no id follows, but a name or a number that means the same to both servers.
const IDLESS_WORDS: [&str; 7] = [
    "put ",
    "kick ",
    "stats-tube ",
    "use ",
    "watch ",
    "ignore ",
    "pause-tube",
];
/// A first number here is no job's id: the same number would be another job on either server.
const BAD_ENDS: [&str; 16] = [
    "",
    " ",
    "x",
    "-",
    " -1",
    " 4100000000 2 3 4 5 6",
    "\\x00",
    "\\xff",
    " 4100000000 4100000000",
    " 4294967296 1",
    " 18446744073709551616",
    " ,",
    " {y*260}",
    " {z*300}",
    "\\t4100000000",
    " x y",
];

/// Where random commands come from.
#[derive(Debug)]
pub(crate) struct Generator {
    random: Random,
    job_size_max: usize,
}

impl Generator {
    pub(crate) fn new(random: Random, job_size_max: usize) -> Generator {
        Generator {
            random,
            job_size_max,
        }
    }

    /// Run one random command, or one of the few patterns of more.
    pub(crate) fn step(&mut self, pair: &mut Pair) {
        let name = self.random.pick(&CONNECTIONS);
        match self.random.below(200) {
            0 => pair.quit(name),
            1..=3 => self.hand_over(pair, name),
            4..=6 => self.pipeline(pair, name),
            _ => {
                pair.send(name, &self.command(pair.jobs()));
                pair.reply(name);
            }
        }
    }

    /// A client waits for a job, and another one's put ends that.
    fn hand_over(&mut self, pair: &mut Pair, name: &str) {
        let others: Vec<&str> = CONNECTIONS
            .into_iter()
            .filter(|other| *other != name)
            .collect();
        let other = self.random.pick(&others);
        // A tube of its own, so that the job that ends the waiting is the one put here.
        pair.ask(name, "watch handover");
        if pair.ask(name, "reserve-with-timeout 0") != "TIMED_OUT\\r\\n" {
            return;
        }
        pair.block(
            name,
            self.random
                .pick(&["reserve", "reserve-with-timeout 1000000"]),
        );
        let look = self
            .random
            .pick(&["stats", "stats-tube handover", "list-tubes"]);
        pair.ask(other, look);
        pair.ask(other, "use handover");
        pair.ask(other, "put 7 0 100000 4\\r\\nwork");
        pair.reply(name);
        pair.ask(name, "ignore handover");
    }

    /// Several commands in one packet.
    fn pipeline(&mut self, pair: &mut Pair, name: &str) {
        let count = 2 + self.random.below(6);
        let lines: String = (0..count).map(|_| self.command(pair.jobs())).collect();
        pair.send(name, &lines);
        for _ in 0..count {
            pair.reply(name);
        }
    }

    /// One command with all its bytes.
    fn command(&mut self, jobs: usize) -> String {
        if self.random.one_in(4) {
            let delay = self.delay();
            return self.put(delay);
        }
        self.line(jobs) + "\\r\\n"
    }

    fn line(&mut self, jobs: usize) -> String {
        let blank = self.random.pick(&BLANKS);
        match self.random.below(100) {
            0..38 => "reserve-with-timeout 0".to_owned(),
            38..48 => format!("delete{blank}{}", self.id(jobs)),
            48..53 => format!("release {} {} {}", self.id(jobs), self.pri(), self.delay()),
            53..58 => format!("bury {}{blank}{}", self.id(jobs), self.pri()),
            58..61 => format!("kick {}", self.random.below(4)),
            61..63 => format!("kick-job {}", self.id(jobs)),
            63..66 => format!("reserve-job{blank}{}", self.id(jobs)),
            66..68 => format!("touch {}", self.id(jobs)),
            68..72 => self
                .random
                .pick(&["peek-ready", "peek-delayed", "peek-buried"])
                .to_owned(),
            72..74 => format!("peek {}", self.id(jobs)),
            74..77 => format!("stats-job {}", self.id(jobs)),
            77..80 => format!("stats-tube {}", self.tube()),
            80..82 => "stats".to_owned(),
            82..86 => format!("use {}", self.tube()),
            86..89 => format!("watch {}", self.tube()),
            89..92 => format!("ignore {}", self.tube()),
            92..94 => self.list().to_owned(),
            94..96 => self.pause(),
            _ => self.malformed(jobs),
        }
    }

    /// Now and then the body is too big, or does not end where it says.
    fn put(&mut self, delay: u32) -> String {
        let (pri, ttr) = (self.pri(), 100_000 + self.random.below(1_000));
        let usual = if self.random.one_in(20) {
            self.job_size_max as u64 + 20
        } else {
            40
        };
        let size = self.random.below(usual);
        let body: String = (0..size).map(|_| self.body_byte()).collect();
        let end = if self.random.one_in(30) {
            "!?"
        } else {
            "\\r\\n"
        };
        format!("put {pri} {delay} {ttr} {size}\\r\\n{body}{end}")
    }

    fn body_byte(&mut self) -> String {
        match self.random.below(4) {
            0 => format!("\\x{:02x}", self.random.below(256)),
            _ => char::from(b'a' + self.random.below(26) as u8).to_string(),
        }
    }

    /// Mostly an id that exists or did, the younger the likelier.
    fn id(&mut self, jobs: usize) -> String {
        let back = self.random.below(12).min(self.random.below(60));
        format!("{{{}}}", (jobs as u64 + 1).saturating_sub(back).max(1))
    }

    fn pri(&mut self) -> u32 {
        match self.random.below(8) {
            0 => u32::MAX,
            1 => 1023,
            2 => 1024,
            _ => self.random.below(5) as u32,
        }
    }

    fn delay(&mut self) -> u32 {
        if self.random.one_in(4) {
            100_000 + self.random.below(1_000) as u32 * 10
        } else {
            0
        }
    }

    fn tube(&mut self) -> &'static str {
        self.random.pick(&TUBES)
    }

    fn list(&mut self) -> &'static str {
        self.random
            .pick(&["list-tubes", "list-tube-used", "list-tubes-watched"])
    }

    /// Rarely a long pause; often its end, lest nothing be reserved any more.
    fn pause(&mut self) -> String {
        let seconds = if self.random.one_in(4) { 100_000 } else { 0 };
        format!("pause-tube {} {seconds}", self.tube())
    }

    /// A command cut short, continued, or with arguments that are not its own.
    fn malformed(&mut self, jobs: usize) -> String {
        let (word, end) = (self.random.pick(&WORDS), self.random.pick(&BAD_ENDS));
        let line = match self.random.below(3) {
            0 => format!("{word}{end}"),
            1 if IDLESS_WORDS.contains(&word) => format!("{word}7{end}"),
            1 => format!("{word}{}{end}", self.id(jobs)),
            _ => word[..self.random.below(word.len() as u64) as usize].to_owned() + end,
        };
        // Cut to this, `reserve-job` would wait.
        if line == "reserve" {
            "reserve ".to_owned()
        } else {
            line
        }
    }
}
