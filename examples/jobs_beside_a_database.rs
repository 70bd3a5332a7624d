//! Jobs beside a database that knows nothing of them: an outbox.
//!
//! An order and the mail about it belong together, but a database and a queue do not commit
//! together. So the transaction that writes the order also writes a row that says which job is to
//! be put: the outbox. Afterwards, and at every start, what is in the outbox is put, and the row
//! goes when the put is durable. A crash in between puts a job twice, never not at all; the worker
//! makes nothing of the second one, because the row of the order says that it is done.
//!
//! The database here is a file of lines, appended to and synced: whatever has transactions will do.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::Path;
use std::time::Duration;

use bsd::{PutOptions, Queue};

/// My database: orders, which of them still wait for their job, and which are mailed.
struct Database {
    file: File,
    orders: BTreeMap<u32, String>,
    outbox: BTreeSet<u32>,
    mailed: BTreeSet<u32>,
}

impl Database {
    fn open(path: &Path) -> io::Result<Database> {
        let mut file = OpenOptions::new()
            .create(true)
            .read(true)
            .append(true)
            .open(path)?;
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        // A crash may have cut the last line off: that transaction was not committed.
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        file.set_len(whole as u64)?;
        let mut database = Database {
            file,
            orders: BTreeMap::new(),
            outbox: BTreeSet::new(),
            mailed: BTreeSet::new(),
        };
        text[..whole].lines().for_each(|line| database.apply(line));
        Ok(database)
    }

    /// One line is one transaction: all of it or nothing.
    fn commit(&mut self, line: &str) -> io::Result<()> {
        self.file.write_all(format!("{line}\n").as_bytes())?;
        self.file.sync_data()?;
        self.apply(line);
        Ok(())
    }

    fn apply(&mut self, line: &str) {
        let mut words = line.splitn(3, ' ');
        let (what, id) = (words.next(), words.next().and_then(|id| id.parse().ok()));
        match (what, id) {
            (Some("order"), Some(id)) => {
                let what = words.next().unwrap_or_default().to_owned();
                self.orders.insert(id, what);
                self.outbox.insert(id);
            }
            (Some("put"), Some(id)) => _ = self.outbox.remove(&id),
            (Some("mailed"), Some(id)) => _ = self.mailed.insert(id),
            _ => {}
        }
    }
}

/// Put what is in the outbox. All of it in one batch, which is one write and one sync.
fn empty_outbox(database: &mut Database, queue: &Queue) -> Result<(), Box<dyn Error>> {
    let ids: Vec<u32> = database.outbox.iter().copied().collect();
    let bodies = ids.iter().map(u32::to_string);
    let puts = queue
        .put_many("mail", bodies, PutOptions::default())
        .wait()?;
    for (id, put) in ids.iter().zip(puts) {
        put?; // on the disk: now the row may go
        database.commit(&format!("put {id}"))?;
    }
    Ok(())
}

/// Mail what the queue says is to be mailed, each order once. Returns the mails.
fn mail_all(database: &mut Database, queue: &Queue) -> Result<Vec<String>, Box<dyn Error>> {
    let mut mails = Vec::new();
    let worker = queue.session();
    worker.watch("mail").wait()?;
    while let Some(job) = worker.reserve_within(Duration::ZERO).wait()? {
        let id: u32 = String::from_utf8_lossy(job.body()).parse()?;
        // The job may be the second one of its order.
        if let Some(what) = database.orders.get(&id)
            && !database.mailed.contains(&id)
        {
            mails.push(format!("your {what} is on its way"));
            database.commit(&format!("mailed {id}"))?;
        }
        // Last: a crash before this tries again, and finds the order mailed.
        job.delete().wait()?;
    }
    Ok(mails)
}

/// A day of a shop that crashes after its last order: orders, a start, mails.
pub(crate) fn run(dir: &Path) -> Result<Vec<String>, Box<dyn Error>> {
    {
        let mut database = Database::open(&dir.join("orders"))?;
        let queue = Queue::open(dir.join("jobs"))?;
        database.commit("order 1 book")?;
        database.commit("order 2 lamp")?;
        empty_outbox(&mut database, &queue)?;
        database.commit("order 3 chair")?;
        // Here the program crashes: the chair is ordered, and its job was not put …
        queue.put("mail", "2", PutOptions::default()).wait()?; // … and that of the lamp was put twice.
    }
    let mut database = Database::open(&dir.join("orders"))?;
    let queue = Queue::open(dir.join("jobs"))?;
    empty_outbox(&mut database, &queue)?;
    let mails = mail_all(&mut database, &queue)?;
    queue.close()?;
    Ok(mails)
}

#[allow(dead_code, reason = "a test runs `run`")]
fn main() -> Result<(), Box<dyn Error>> {
    let dir = std::env::args_os().nth(1).ok_or("give a directory")?;
    for mail in run(Path::new(&dir))? {
        println!("{mail}");
    }
    Ok(())
}
