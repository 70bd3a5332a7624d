//! The program of README.md: a producer and a worker with retries.

use bsd_client::worker::{Failure, Task, Worker};
use bsd_client::{Client, Config, DeadLetter, Policy, Put};
use serde::{Deserialize, Serialize};
use std::time::Duration;

#[derive(Serialize, Deserialize)]
struct Mail {
    to: String,
}

fn send(mail: Task<Mail>) -> Result<(), Failure> {
    if !mail.to.contains('@') {
        return Err(Failure::new("that is no address").never_again());
    }
    println!("mail to {}", mail.to);
    Ok(())
}

fn main() -> Result<(), bsd_client::Error> {
    let config: Config = "127.0.0.1:11300".parse()?;
    let mut client = Client::connect(config.clone())?;
    client.set_policy(
        "mail",
        &Policy {
            delivery_limit: Some(8),
            retry_min: Some(Duration::from_secs(5)),
            dead_letter: DeadLetter::Tube("mail-dead".into()),
            ..Policy::default()
        },
    )?;
    let mail = Mail {
        to: "you@example.org".into(),
    };
    client.put(Put::json(&mail)?.tube("mail"))?;

    let summary = Worker::new(send).tube("mail").concurrency(8).run(config)?;
    println!("{} jobs were done", summary.done);
    Ok(())
}
