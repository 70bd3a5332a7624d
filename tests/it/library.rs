//! The library without sockets: each call of [`JobQueue`], what it answers, and what it says when
//! it refuses.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bsd::storage::SimFs;
use bsd::storage::disk::sim::{Fault, OpKind};
use bsd::types::{JobId, JobState};
use bsd::{JobError, JobQueue, Options, PutOptions};
use rustix::io::Errno;

use crate::wal::{DIR, options};

fn queue(disk: &SimFs) -> JobQueue {
    JobQueue::open_with(&options(disk, DIR)).unwrap()
}

fn put(queue: &mut JobQueue, tube: &str) -> JobId {
    queue.put(tube, b"body", PutOptions::default()).unwrap()
}

fn state(queue: &mut JobQueue, id: JobId) -> JobState {
    queue.stats_job(id).unwrap().state
}

#[test]
fn a_session_does_to_a_job_whatever_a_client_of_the_server_can() {
    let mut queue = queue(&SimFs::new(1));
    assert_eq!(queue.watch("work").unwrap(), 2);
    assert_eq!(queue.ignore("default").unwrap(), 1);
    let id = put(&mut queue, "work");
    assert_eq!(queue.peek(id).unwrap().body, b"body");
    let job = queue.reserve().unwrap().unwrap();
    assert_eq!((job.id, state(&mut queue, id)), (id, JobState::Reserved));
    queue.touch(id).unwrap();
    queue.release(id, 7, Duration::from_secs(1000)).unwrap();
    assert_eq!(state(&mut queue, id), JobState::Delayed);
    queue.kick(id).unwrap();
    assert_eq!(queue.reserve().unwrap().unwrap().id, id);
    queue.bury(id, 9).unwrap();
    assert_eq!(state(&mut queue, id), JobState::Buried);
    queue.kick(id).unwrap();
    queue.pause("work", Duration::from_secs(1000)).unwrap();
    assert_eq!(queue.reserve().unwrap(), None);
    let tube = queue.stats_tube("work").unwrap();
    assert_eq!((tube.current_jobs_ready, tube.cmd_pause_tube), (1, 1));
    assert_eq!(queue.stats().unwrap().total_jobs, 1);
    queue.delete(id).unwrap();
    assert_eq!(queue.stats_job(id), Err(JobError::NotFound));
}

#[test]
fn without_a_directory_the_same_calls_work_in_memory() {
    let mut queue = JobQueue::open_with(&Options::default()).unwrap();
    let (first, second) = (put(&mut queue, "default"), put(&mut queue, "default"));
    assert_eq!(queue.reserve().unwrap().unwrap().id, first);
    queue.bury(first, 1).unwrap();
    queue.delete(second).unwrap();
    assert_eq!(queue.peek(first).unwrap().body, b"body");
    queue.close().unwrap();
}

#[test]
fn memory_that_is_full_refuses_puts_until_a_job_is_deleted() {
    let mut queue = JobQueue::open_with(&Options {
        memory_max: Some(100_000),
        ..Options::default()
    })
    .unwrap();
    let body = vec![0; 10_000];
    let mut put = || queue.put("default", &body, PutOptions::default());
    let first = put().unwrap();
    let refused = (0..20).find_map(|_| put().err()).unwrap();
    assert!(matches!(refused, JobError::OutOfSpace), "{refused:?}");
    queue.delete(first).unwrap();
    queue.put("default", &body, PutOptions::default()).unwrap();
}

#[test]
fn a_call_waits_for_a_job_that_becomes_ready_by_itself_and_no_longer_than_it_was_told() {
    let mut queue = queue(&SimFs::new(1));
    assert_eq!(
        queue.reserve_within(Duration::from_millis(5)).unwrap(),
        None
    );
    let delayed = PutOptions {
        delay: Duration::from_secs(1),
        ..PutOptions::default()
    };
    let id = queue.put("default", b"soon", delayed).unwrap();
    let job = queue.reserve_within(Duration::from_secs(60)).unwrap();
    assert_eq!(job.map(|job| job.id), Some(id));
    assert_eq!(queue.reserve_within(Duration::ZERO).unwrap(), None);
}

#[test]
fn what_cannot_be_done_is_refused_in_words_and_changes_nothing() {
    let mut queue = queue(&SimFs::new(1));
    let id = put(&mut queue, "default");
    let said = |result: Result<(), JobError>, words: &str| {
        let error = result.unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
        assert!(error.source().is_none());
    };
    let gone = JobId(99);
    said(queue.delete(gone), "no such job");
    said(queue.touch(id), "not in a state that allows this");
    said(queue.release(id, 1, Duration::ZERO), "no such job");
    said(queue.bury(id, 1), "no such job");
    said(queue.kick(id), "no such job");
    said(queue.peek(gone).map(|_| ()), "no such job");
    said(queue.pause("absent", Duration::from_secs(1)), "no such job");
    said(queue.watch("a b").map(|_| ()), "\"a b\" is no tube name");
    said(queue.ignore("-a").map(|_| ()), "not beginning with -");
    said(queue.ignore("default").map(|_| ()), "the last watched tube");
    let large = vec![0; 70_000];
    let put = queue.put("default", &large, PutOptions::default());
    said(put.map(|_| ()), "70000 bytes, the bound is 65535");
    assert_eq!(queue.reserve().unwrap().unwrap().id, id);
}

#[test]
fn a_disk_that_is_full_refuses_the_put_and_says_that_deleting_helps() {
    let disk = SimFs::new(1);
    let mut queue = queue(&disk);
    disk.set_quota(Some(disk.used()));
    let body = vec![1; 9000];
    let error = (0..40)
        .find_map(|_| queue.put("t", &body, PutOptions::default()).err())
        .unwrap();
    assert!(matches!(error, JobError::OutOfSpace), "{error:?}");
    assert!(error.to_string().contains("when jobs have been deleted"));
}

#[test]
fn a_body_that_rotted_is_not_handed_out_and_its_job_is_buried() {
    let disk = SimFs::new(1);
    let mut first = queue(&disk);
    let id = first.put("t", &[0x5a; 500], PutOptions::default()).unwrap();
    first.close().unwrap();
    let mut queue = queue(&disk);
    let path = Path::new(DIR).join("segment-0000000001.00000");
    let bytes = disk.read(&path).unwrap();
    let body = bytes
        .windows(500)
        .position(|bytes| bytes == [0x5a; 500])
        .unwrap();
    disk.flip_bit(&path, body as u64 * 8).unwrap();
    let error = queue.peek(id).unwrap_err();
    assert!(matches!(error, JobError::Damaged), "{error:?}");
    assert!(error.to_string().contains("the job was buried"));
    assert_eq!(state(&mut queue, id), JobState::Buried);
}

#[test]
fn a_disk_that_fails_ends_the_queue_and_the_error_says_where() {
    let disk = SimFs::new(1);
    let mut queue = queue(&disk);
    disk.inject(Fault::fail(OpKind::Sync, Errno::IO).for_ever());
    let failed = queue.put("t", b"body", PutOptions::default()).unwrap_err();
    assert!(matches!(failed, JobError::Store(_)), "{failed:?}");
    assert!(failed.to_string().contains(DIR), "{failed}");
    assert!(failed.source().is_some());
    let after = queue.put("t", b"body", PutOptions::default());
    assert!(matches!(after, Err(JobError::Store(_))));
}

#[test]
fn what_is_printed_of_a_queue_and_its_options_is_short_and_shows_no_body() {
    let disk = SimFs::new(1);
    let mut queue = queue(&disk);
    put(&mut queue, "t");
    let options = format!("{:?}", options(&disk, DIR));
    assert!(options.contains("\"/log\"") && options.contains("65536"));
    for text in [format!("{queue:?}"), options, format!("{disk:?}")] {
        assert!(text.len() < 1000 && !text.contains("body"), "{text}");
    }
    assert!(Arc::new(disk).operations() > 0);
}
