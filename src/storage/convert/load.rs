//! A new log from jobs that are described one by one: `bsd-wal load` writes with it.
//!
//! Not a parser: the caller reads a dump, in any form, and passes its jobs. Ids, states,
//! priorities, counters, deadlines, times of creation and the order of buried jobs are kept.
//! [`Build`] builds the log: all or nothing.
//!
//! Invariants: jobs come in the order of their ids, so none comes twice; memory holds one entry for
//! each buried job, and nothing for the others.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use crate::attributes::Attributes;
use crate::storage::convert::build::Build;
use crate::storage::disk::Fs;
use crate::storage::error::OpenError;
use crate::storage::format::Record;
use crate::storage::inspect::{JobRecord, PauseRecord, SettingRecord};
use crate::types::{
    Counters, JobId, JobState, Now, SECOND_NS, SETTING_NAME_MAX, SETTING_SIZE_MAX, SettingClass,
    is_setting_name, is_tube_name,
};

/// The largest body that can be loaded, bytes: a job has to fit into a segment.
pub const BODY_SIZE_MAX: usize = (u32::MAX - (1 << 20)) as usize;

/// Why a job, pause or id was not loaded.
#[derive(Debug)]
pub enum LoadError {
    /// The value cannot be part of a log; the text says why. Nothing of it was written.
    Refused(String),
    /// The new log cannot be written.
    Open(OpenError),
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LoadError::Refused(why) => f.write_str(why),
            LoadError::Open(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for LoadError {}

impl From<OpenError> for LoadError {
    fn from(error: OpenError) -> LoadError {
        LoadError::Open(error)
    }
}

/// Result of a load.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Loaded {
    /// Jobs in the new log.
    pub jobs: u64,
    /// The id of the next job.
    pub next_id: JobId,
}

/// A log that is being loaded. Dropped before [`Load::finish`], it leaves nothing under the
/// requested name.
#[derive(Debug)]
pub struct Load {
    build: Build,
    /// The id of the last job.
    last: JobId,
    next_id: JobId,
    jobs: u64,
    buried: Vec<Buried>,
    pauses: Vec<Pause>,
}

/// The state of a buried job, which waits for jobs that were buried earlier.
#[derive(Debug)]
struct Buried {
    order: u64,
    id: JobId,
    pri: u32,
    delay: u32,
    counters: Counters,
}

#[derive(Debug)]
struct Pause {
    tube: String,
    until_wall_ns: u64,
    duration: u32,
}

impl Load {
    /// Start a log that will be at `dir`, which must be empty or missing, in segments of
    /// `segment_size` bytes.
    ///
    /// # Errors
    /// Those of [`Build::begin`].
    pub fn begin(
        fs: Arc<dyn Fs>,
        dir: &Path,
        segment_size: u32,
        now: Now,
    ) -> Result<Load, OpenError> {
        Ok(Load {
            build: Build::begin(fs, dir, segment_size, now)?,
            last: JobId(0),
            next_id: JobId(1),
            jobs: 0,
            buried: Vec::new(),
            pauses: Vec::new(),
        })
    }

    /// Add a job. A reserved one becomes ready, as at a restart. `buried_order` determines which
    /// buried jobs are kicked first, smaller numbers before greater; those without a number come
    /// last, in the order of their ids.
    ///
    /// # Errors
    /// [`LoadError::Refused`] for a job that no log can hold: its id is not greater than the one
    /// before, its tube's name is not valid, it is delayed without a deadline, its attributes are no
    /// list or name a tube, or its body is larger than [`BODY_SIZE_MAX`].
    pub fn job(&mut self, job: &JobRecord, buried_order: Option<u64>) -> Result<(), LoadError> {
        self.refuse(job).map_or(Ok(()), Err)?;
        self.build.append(&Record::Put {
            id: job.id,
            created_wall_ns: job.created_wall_ns,
            pri: job.pri,
            delay: job.delay,
            ttr: job.ttr,
            tube: &job.tube,
            body: &job.body,
        })?;
        if !job.attributes.is_empty() {
            let (id, list) = (job.id, &*job.attributes);
            self.build.append(&Record::Attributes { id, list })?;
        }
        match job.state {
            JobState::Buried => self.buried.push(Buried {
                order: buried_order.unwrap_or(u64::MAX),
                id: job.id,
                pri: job.pri,
                delay: job.delay,
                counters: job.counters,
            }),
            _ if is_as_put(job) => {}
            state => self.build.append(&Record::Update {
                id: job.id,
                kick: 0,
                state: if state == JobState::Delayed {
                    JobState::Delayed
                } else {
                    JobState::Ready
                },
                deadline_wall_ns: match state {
                    JobState::Delayed => job.deadline_wall_ns.unwrap_or(0),
                    _ => 0,
                },
                pri: job.pri,
                delay: job.delay,
                counters: job.counters,
            })?,
        }
        self.last = job.id;
        self.jobs += 1;
        Ok(())
    }

    fn refuse(&self, job: &JobRecord) -> Option<LoadError> {
        let JobRecord { id, tube, body, .. } = job;
        // One id must remain for the next job.
        let why = if id.0 == 0 || id.0 >= u64::MAX - 1 {
            format!("no job can have the id {id}")
        } else if *id <= self.last {
            format!(
                "job {id} comes after job {}: jobs must come in the order of their ids, each once; \
                 sort them",
                self.last
            )
        } else if !is_tube_name(tube.as_bytes()) {
            bad_tube(tube)
        } else if job.state == JobState::Delayed && job.deadline_wall_ns.is_none() {
            format!("job {id} is delayed and has no deadline")
        } else if attributes(job).is_none_or(|it| it.tube.is_some()) {
            format!("the attributes of job {id} are none that a job can have")
        } else if body.len() > BODY_SIZE_MAX {
            let size = body.len();
            format!("the body of job {id} has {size} bytes, the bound is {BODY_SIZE_MAX}")
        } else {
            return None;
        };
        Some(LoadError::Refused(why))
    }

    /// Add the pause of a tube.
    ///
    /// # Errors
    /// [`LoadError::Refused`] if the tube's name is not valid.
    pub fn pause(&mut self, pause: &PauseRecord<'_>) -> Result<(), LoadError> {
        if !is_tube_name(pause.tube.as_bytes()) {
            return Err(LoadError::Refused(bad_tube(pause.tube)));
        }
        self.pauses.push(Pause {
            tube: pause.tube.to_owned(),
            until_wall_ns: pause.until_wall_ns,
            duration: pause.duration,
        });
        Ok(())
    }

    /// Add a setting. A part of a clear that was not over is left out: the jobs that it had not deleted
    /// are there again.
    ///
    /// # Errors
    /// [`LoadError::Refused`] if no log can hold it.
    pub fn setting(&mut self, setting: &SettingRecord) -> Result<(), LoadError> {
        let SettingRecord { class, name, value } = setting;
        if !is_setting_name(name) || !(1..=SETTING_SIZE_MAX).contains(&value.len()) {
            let why = format!(
                "no setting has the name {name:?} and a value of {} bytes: 1 to {SETTING_NAME_MAX} \
                 bytes, and 1 to {SETTING_SIZE_MAX}",
                value.len()
            );
            return Err(LoadError::Refused(why));
        }
        if *class == SettingClass::Clear {
            // It means jobs by the tubes that they were put into, and here each is put into the tube
            // that it is in. So it could mean a job that should stay: those that it means come back.
            return Ok(());
        }
        let class = *class;
        Ok(self.build.append(&Record::Setting { class, name, value })?)
    }

    /// Make sure that a server that continues the log gives out no id below `next_id`. It never
    /// gives out an id that a job has.
    ///
    /// # Errors
    /// [`LoadError::Refused`] if no id would be left for another job.
    pub fn next_id(&mut self, next_id: JobId) -> Result<(), LoadError> {
        if next_id.0 == u64::MAX {
            let why = format!("no job can be put after the id {next_id}");
            return Err(LoadError::Refused(why));
        }
        self.next_id = self.next_id.max(next_id);
        Ok(())
    }

    /// The number of jobs added.
    #[must_use]
    pub fn jobs(&self) -> u64 {
        self.jobs
    }

    /// Write the rest, make the log durable and give it its name. All of it is durable on return.
    ///
    /// # Errors
    /// If the disk is full or fails; then there is nothing under the requested name.
    pub fn finish(mut self) -> Result<Loaded, OpenError> {
        self.buried
            .sort_unstable_by_key(|buried| (buried.order, buried.id));
        for buried in &self.buried {
            self.build.append(&Record::Update {
                id: buried.id,
                kick: 0,
                state: JobState::Buried,
                deadline_wall_ns: 0,
                pri: buried.pri,
                delay: buried.delay,
                counters: buried.counters,
            })?;
        }
        for pause in &self.pauses {
            self.build.append(&Record::Pause {
                tube: &pause.tube,
                until_wall_ns: pause.until_wall_ns,
                duration: pause.duration,
            })?;
        }
        let next_id = self.next_id.max(JobId(self.last.0 + 1));
        self.build.skip_ids(next_id)?;
        self.build.finish()?;
        Ok(Loaded {
            jobs: self.jobs,
            next_id,
        })
    }
}

fn attributes(job: &JobRecord) -> Option<Attributes<'_>> {
    Attributes::decode(&job.attributes)
}

fn bad_tube(name: &str) -> String {
    format!(
        "{name:?} is no tube name: 1 to 200 of the letters, digits and -+/;.$_(), not beginning \
         with -"
    )
}

/// True if a job's put alone describes it completely.
fn is_as_put(job: &JobRecord) -> bool {
    let due = job
        .created_wall_ns
        .saturating_add(u64::from(job.delay) * SECOND_NS as u64);
    let is_state = match job.state {
        JobState::Delayed => job.delay > 0 && job.deadline_wall_ns == Some(due),
        JobState::Ready | JobState::Reserved => job.delay == 0,
        JobState::Buried => false,
    };
    is_state && job.counters == Counters::default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorClass;
    use crate::storage::SimFs;
    use crate::storage::disk::sim::{Errno, Fault, OpKind};
    use crate::storage::inspect::Inspection;
    use crate::types::Time;

    const WALL: u64 = 1_800_000_000_000_000_000;

    fn begin(disk: &SimFs) -> Load {
        let now = Now::new(Time(0), WALL);
        Load::begin(Arc::new(disk.clone()), Path::new("/new"), 64 << 10, now).unwrap()
    }

    fn job(id: u64) -> JobRecord {
        JobRecord {
            id: JobId(id),
            tube: "t".to_owned(),
            state: JobState::Ready,
            pri: 1,
            delay: 0,
            ttr: 60,
            created_wall_ns: WALL - 5,
            deadline_wall_ns: None,
            counters: Counters::default(),
            body: b"body".to_vec(),
            attributes: Vec::new(),
        }
    }

    fn list(attributes: &Attributes<'_>) -> Vec<u8> {
        attributes.encode().unwrap()
    }

    fn refused(result: Result<(), LoadError>) -> String {
        match result {
            Err(LoadError::Refused(why)) => why,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn jobs_are_there_as_they_were_described() {
        let disk = SimFs::new(1);
        let mut load = begin(&disk);
        let counters = Counters::new([3, 1, 2, 4, 5]);
        let delayed = |id, deadline| JobRecord {
            state: JobState::Delayed,
            delay: 10,
            deadline_wall_ns: Some(deadline),
            ..job(id)
        };
        let jobs = [
            job(3),
            delayed(4, WALL - 5 + 10 * SECOND_NS as u64),
            delayed(7, WALL + 77),
            JobRecord { counters, ..job(8) },
            JobRecord {
                delay: 9, // kicked before it was due
                ..job(9)
            },
            JobRecord {
                attributes: list(&Attributes {
                    key: Some("k"),
                    failures: Some(2),
                    ..Attributes::default()
                }),
                counters,
                ..job(10)
            },
            JobRecord {
                state: JobState::Buried,
                counters,
                attributes: list(&Attributes {
                    text: Some(b"why"),
                    ..Attributes::default()
                }),
                ..job(u64::from(u32::MAX) * 9)
            },
        ];
        for job in &jobs {
            load.job(job, None).unwrap();
        }
        let pause = PauseRecord {
            tube: "p",
            until_wall_ns: WALL + 9,
            duration: 100,
        };
        load.pause(&pause).unwrap();
        let setting = SettingRecord {
            class: SettingClass::Policy,
            name: "mail-*".to_owned(),
            value: b"fair=on".to_vec(),
        };
        load.setting(&setting).unwrap();
        // It is left out.
        let clear = SettingRecord {
            class: SettingClass::Clear,
            name: "9.0/000000".to_owned(),
            value: vec![1],
        };
        load.setting(&clear).unwrap();
        let loaded = load.finish().unwrap();
        assert_eq!(loaded.jobs, jobs.len() as u64);
        let new =
            Inspection::read(Arc::new(disk.clone()), Path::new("/new"), &mut |_, _| ()).unwrap();
        assert!(new.is_intact() && new.clean_stop);
        for job in &jobs {
            assert_eq!(new.read_job(job.id).unwrap().as_ref(), Some(job));
        }
        assert_eq!(new.job_count(), jobs.len());
        assert_eq!(new.pauses().collect::<Vec<_>>(), [pause]);
        let settings: Vec<_> = new.settings().map(Result::unwrap).collect();
        assert_eq!(settings, [setting]);
        assert_eq!(new.next_id, loaded.next_id);
    }

    #[test]
    fn buried_jobs_come_in_the_order_that_is_asked_for() {
        let disk = SimFs::new(1);
        let mut load = begin(&disk);
        for (id, order) in [(1, None), (2, Some(9)), (3, Some(4)), (4, None)] {
            let buried = JobRecord {
                state: JobState::Buried,
                ..job(id)
            };
            load.job(&buried, order).unwrap();
        }
        load.finish().unwrap();
        let new = Inspection::read(Arc::new(disk), Path::new("/new"), &mut |_, _| ()).unwrap();
        assert_eq!(new.buried(), [3, 2, 1, 4].map(JobId));
    }

    #[test]
    fn ids_that_were_given_out_are_never_given_out_again() {
        let disk = SimFs::new(1);
        let mut load = begin(&disk);
        load.job(&job(5), None).unwrap();
        load.next_id(JobId(100)).unwrap();
        load.next_id(JobId(50)).unwrap();
        assert_eq!(load.finish().unwrap().next_id, JobId(100));
        let new = Inspection::read(Arc::new(disk), Path::new("/new"), &mut |_, _| ()).unwrap();
        assert_eq!(new.next_id, JobId(100));
    }

    #[test]
    fn what_no_log_can_hold_is_refused_and_leaves_nothing_behind() {
        let disk = SimFs::new(1);
        let mut load = begin(&disk);
        load.job(&job(5), None).unwrap();
        assert!(refused(load.job(&job(5), None)).contains("in the order of their ids"));
        assert!(refused(load.job(&job(4), None)).contains("job 4 comes after job 5"));
        assert!(refused(load.job(&job(0), None)).contains("the id 0"));
        for greatest in [u64::MAX - 1, u64::MAX] {
            assert!(refused(load.job(&job(greatest), None)).contains("no job can have"));
        }
        let tube = JobRecord {
            tube: "a b".to_owned(),
            ..job(6)
        };
        assert!(refused(load.job(&tube, None)).contains("no tube name"));
        let delayed = JobRecord {
            state: JobState::Delayed,
            ..job(6)
        };
        assert!(refused(load.job(&delayed, None)).contains("no deadline"));
        let moved = Attributes {
            tube: Some("t"),
            ..Attributes::default()
        };
        for attributes in [vec![0], list(&moved)] {
            let of_none = JobRecord {
                attributes,
                ..job(6)
            };
            assert!(refused(load.job(&of_none, None)).contains("none that a job can have"));
        }
        let setting = |name: &str, size| SettingRecord {
            class: SettingClass::Fired,
            name: name.to_owned(),
            value: vec![0; size],
        };
        for setting in [
            setting("", 1),
            setting("n", 0),
            setting("n", SETTING_SIZE_MAX + 1),
        ] {
            assert!(refused(load.setting(&setting)).contains("no setting has"));
        }
        assert!(refused(load.next_id(JobId(u64::MAX))).contains("after the id"));
        drop(load);
        assert!(disk.names("/").unwrap().is_empty());
    }

    #[test]
    fn g02_a_load_that_can_open_no_file_does_not_say_that_the_disk_is_full() {
        let errnos = [
            (Errno::MFILE, ErrorClass::Descriptors, "limit of open files"),
            (Errno::NOSPC, ErrorClass::Full, "free space"),
        ];
        for (errno, class, advice) in errnos {
            let disk = SimFs::new(1);
            let mut load = begin(&disk);
            disk.inject(Fault::fail(OpKind::Create, errno).for_ever());
            let mut large = job(1);
            large.body = vec![0; 20_000];
            let error = (1..).find_map(|id| {
                large.id = JobId(id);
                load.job(&large, None).err()
            });
            let Some(LoadError::Open(error)) = error else {
                panic!("{errno}: {error:?}");
            };
            assert_eq!(error.class(), class, "{error}");
            assert!(error.to_string().contains(advice), "{error}");
        }
    }

    #[test]
    fn g02_a_new_log_that_cannot_be_read_back_is_an_error_of_the_disk() {
        let disk = SimFs::new(1);
        let mut load = begin(&disk);
        load.job(&job(1), None).unwrap();
        disk.inject(Fault::fail(OpKind::Read, Errno::IO).for_ever());
        let error = load.finish().unwrap_err();
        assert_eq!(error.class(), ErrorClass::Disk, "{error}");
        assert!(error.to_string().contains("did not keep"), "{error}");
    }
}
