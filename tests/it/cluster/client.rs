//! A client at work, through any member: it puts, reserves, looks, and tells the history of it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use bsd::random::Random;

use super::history::{Durable, History};
use super::members::Doors;
use crate::harness::POLL_EVERY;
use crate::wire::{Wire, inserted, job_of, put_command};

/// With more jobs than this a client only takes away.
const JOBS_A_CLIENT: usize = 60;
const SHARED: &str = "of-all";

/// One client. See the head of this file.
pub(super) struct Client<'a> {
    number: usize,
    random: Random,
    history: &'a History,
    doors: &'a Doors,
    /// Jobs of its own tube, with their state as far as it knows.
    own: BTreeMap<u64, Option<Durable>>,
    bodies: u64,
    tube: String,
    is_shared: bool,
}

/// The connection is gone, or the reply was none that can be.
struct Gone;

impl<'a> Client<'a> {
    pub(super) fn new(
        number: usize,
        seed: u64,
        history: &'a History,
        doors: &'a Doors,
    ) -> Client<'a> {
        Client {
            number,
            random: Random::new(seed).fork(number as u64),
            history,
            doors,
            own: BTreeMap::new(),
            bodies: 0,
            tube: format!("of-{number}"),
            is_shared: false,
        }
    }

    /// Work until it is over, on one connection after another.
    pub(super) fn run_until(&mut self, over: &AtomicBool) {
        while !over.load(Ordering::Relaxed) {
            let door = self.doors.pick(&mut self.random);
            let wire = door.and_then(|door| Wire::connect(door).ok());
            let Some(mut wire) = wire else {
                thread::sleep(POLL_EVERY);
                continue;
            };
            let mut left = 20 + self.random.below(300);
            let mut goes_on = self.enter(&mut wire).is_ok();
            while goes_on && left > 0 && !over.load(Ordering::Relaxed) {
                left -= 1;
                goes_on = self.step(&mut wire).is_ok();
            }
        }
    }

    fn enter(&mut self, wire: &mut Wire) -> Result<(), Gone> {
        self.is_shared = self.random.one_in(3);
        let tube = match self.is_shared {
            true => SHARED,
            false => &self.tube,
        };
        let lines = format!("use {tube}\r\nwatch {tube}\r\nignore default\r\n");
        self.send(wire, lines.as_bytes())?;
        for _ in 0..3 {
            self.reply(wire)?;
        }
        Ok(())
    }

    fn send(&self, wire: &mut Wire, bytes: &[u8]) -> Result<(), Gone> {
        wire.try_send(bytes).map_err(|_| Gone)
    }

    fn reply(&self, wire: &mut Wire) -> Result<Vec<u8>, Gone> {
        wire.try_reply().map_err(|error| {
            if matches!(
                error.kind(),
                std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut
            ) {
                let number = self.number;
                self.history
                    .breach(format!("client {number} waits in vain, and is not closed"));
            }
            Gone
        })
    }

    fn step(&mut self, wire: &mut Wire) -> Result<(), Gone> {
        let is_full = match self.is_shared {
            true => self.random.percent(40),
            false => self.own.len() >= JOBS_A_CLIENT,
        };
        match self.random.below(10) {
            0..5 if !is_full => self.put_some(wire),
            5 if !self.is_shared => self.look(wire),
            _ => self.work(wire),
        }
    }

    fn put_some(&mut self, wire: &mut Wire) -> Result<(), Gone> {
        let mut bodies = Vec::new();
        let mut commands = Vec::new();
        for _ in 0..=self.random.below(4) {
            self.bodies += 1;
            let size_max = if self.random.one_in(50) { 60_000 } else { 300 };
            let size = self.random.below(size_max) as usize;
            let mut body = format!("{}/{} ", self.number, self.bodies).into_bytes();
            body.resize(body.len() + size, b'.');
            let now = Durable {
                state: "ready",
                pri: self.random.below(3000) as u32,
            };
            self.history
                .put_asked(&body, (!self.is_shared).then_some(now));
            commands.extend(put_command(now.pri, 0, &body));
            bodies.push((body, now));
        }
        self.send(wire, &commands)?;
        for (body, now) in bodies {
            let reply = self.reply(wire)?;
            if self.history.is_refused(&reply) {
                self.history.put_refused(&body);
                continue;
            }
            let reply = String::from_utf8_lossy(&reply).into_owned();
            let Some(id) = inserted(&reply) else {
                return self.is_wrong("put", &reply);
            };
            self.history.put_told(id, &body);
            if !self.is_shared {
                self.own.insert(id, Some(now));
            }
        }
        Ok(())
    }

    fn is_wrong(&self, line: &str, reply: &str) -> Result<(), Gone> {
        self.history
            .breach(format!("{line} was answered {reply:?}"));
        Err(Gone)
    }

    /// A job that must be there is seen through any member.
    fn look(&mut self, wire: &mut Wire) -> Result<(), Gone> {
        let Some(id) = self.one_that_is("ready").or(self.one_that_is("buried")) else {
            return Ok(());
        };
        let asked = Instant::now();
        self.send(wire, format!("peek {id}\r\n").as_bytes())?;
        let reply = self.reply(wire)?;
        match job_of(&reply) {
            Some((id, body)) => self.history.got(id, body, asked),
            None => {
                let reply = String::from_utf8_lossy(&reply).into_owned();
                return self.is_wrong(&format!("peek {id}, which is there,"), &reply);
            }
        }
        Ok(())
    }

    fn one_that_is(&mut self, state: &str) -> Option<u64> {
        let all = self.own.iter();
        let fit = all.filter(|(_, now)| now.is_some_and(|now| now.state == state));
        let fit: Vec<u64> = fit.map(|(id, _)| *id).collect();
        (!fit.is_empty()).then(|| self.random.pick(&fit))
    }

    fn work(&mut self, wire: &mut Wire) -> Result<(), Gone> {
        let asked = Instant::now();
        self.send(wire, b"reserve-with-timeout 0\r\n")?;
        let reply = self.reply(wire)?;
        let Some((id, body)) = job_of(&reply) else {
            if !reply.starts_with(b"TIMED_OUT") {
                let reply = String::from_utf8_lossy(&reply).into_owned();
                return self.is_wrong("reserve", &reply);
            }
            return self.wake(wire);
        };
        self.history.got(id, body, asked);
        if !self.is_shared {
            let now = self.own.entry(id).or_default();
            if now.is_some_and(|now| now.state != "ready") {
                self.history
                    .breach(format!("job {id} is to be {now:?}, and was reserved"));
            }
        }
        let pri = self.random.below(3000) as u32;
        let durable = |state| Some(Durable { state, pri });
        match self.random.below(6) {
            0 => self.run(wire, id, &format!("bury {id} {pri}"), durable("buried")),
            1 => self.run(wire, id, &format!("release {id} {pri} 0"), durable("ready")),
            // Reserved when the connection ends: ready then.
            2 => Ok(()),
            _ => self.delete(wire, id),
        }
    }

    /// Nothing is ready: kick something, or delete it as it lies.
    fn wake(&mut self, wire: &mut Wire) -> Result<(), Gone> {
        if self.is_shared {
            self.send(wire, b"kick 3\r\n")?;
            let reply = self.reply(wire)?;
            return match reply.starts_with(b"KICKED ") || self.history.is_refused(&reply) {
                true => Ok(()),
                false => self.is_wrong("kick 3", &String::from_utf8_lossy(&reply)),
            };
        }
        let Some(id) = self.one_that_is("buried") else {
            return Ok(());
        };
        if self.random.one_in(2) {
            return self.delete(wire, id);
        }
        let pri = self.own[&id].map_or(0, |now| now.pri);
        let after = Some(Durable {
            state: "ready",
            pri,
        });
        self.run(wire, id, &format!("kick-job {id}"), after)
    }

    fn delete(&mut self, wire: &mut Wire, id: u64) -> Result<(), Gone> {
        self.history.end_asked(id);
        self.own.remove(&id);
        let line = format!("delete {id}");
        self.send(wire, format!("{line}\r\n").as_bytes())?;
        let reply = self.reply(wire)?;
        if reply != b"DELETED\r\n" {
            return self.is_wrong(&line, &String::from_utf8_lossy(&reply));
        }
        self.history.end_told(id);
        Ok(())
    }

    fn run(
        &mut self,
        wire: &mut Wire,
        id: u64,
        line: &str,
        after: Option<Durable>,
    ) -> Result<(), Gone> {
        let is_own = !self.is_shared;
        self.history.change_job(id, |job| job.now = None);
        if is_own {
            self.own.insert(id, None);
        }
        self.send(wire, format!("{line}\r\n").as_bytes())?;
        let reply = self.reply(wire)?;
        if self.history.is_refused(&reply) {
            // Whatever it was stays as it is, and ready if it was reserved: when this connection ends.
            return Err(Gone);
        }
        let expected: [&[u8]; 3] = [b"BURIED\r\n", b"RELEASED\r\n", b"KICKED\r\n"];
        if !expected.contains(&&reply[..]) {
            return self.is_wrong(line, &String::from_utf8_lossy(&reply));
        }
        self.history.answers.fetch_add(1, Ordering::Relaxed);
        if is_own {
            self.history.change_job(id, |job| job.now = after);
            self.own.insert(id, after);
        }
        Ok(())
    }
}
