//! Encoding replies into the bytes for the client.
//!
//! Every reply of `protocol.txt`, two for `auth`, and those of the extended commands. Replies are
//! appended to one buffer per connection, so that the replies of a turn are sent in one write; the
//! only allocation is that buffer's growth.

use super::number::{Backwards, push_u64};
use super::yaml::{write_ids, write_jobs};
use super::{BatchJob, Batched, JobPage, Refusal, Reply, Report, Shown};
use crate::types::JobId;

const CRLF: &[u8; 2] = b"\r\n";

/// Digits of the largest number.
const NUMBER_SIZE_MAX: usize = 20;

/// Appends the bytes of `reply` to `out`.
pub fn encode(reply: &Reply<'_>, out: &mut Vec<u8>) {
    match *reply {
        Reply::Inserted(id) => number(b"INSERTED ", id.0, out),
        Reply::Exists(id) => number(b"EXISTS ", id.0, out),
        Reply::Using(tube) => name("USING ", tube, out),
        Reply::Reserved(id, body) => job(b"RESERVED ", id, body, out),
        Reply::ReservedBatch(jobs) => reserved_batch(jobs, out),
        Reply::Found(id, body) => job(b"FOUND ", id, body, out),
        Reply::Yaml(document) => sized(b"OK ", document, out),
        Reply::Report(report) => document(report, out),
        Reply::Jobs(page) => jobs(page, out),
        Reply::Watching(count) => number(b"WATCHING ", count as u64, out),
        Reply::KickedCount(count) => number(b"KICKED ", count, out),
        Reply::Kicked => word("KICKED\r\n", out),
        Reply::Deleted => word("DELETED\r\n", out),
        Reply::Released => word("RELEASED\r\n", out),
        Reply::Buried => word("BURIED\r\n", out),
        Reply::Touched => word("TOUCHED\r\n", out),
        Reply::Paused => word("PAUSED\r\n", out),
        Reply::Aborted => word("ABORTED\r\n", out),
        Reply::Moved => word("MOVED\r\n", out),
        Reply::Cleared(count) => number(b"CLEARED ", count, out),
        Reply::PolicySet => word("POLICY_SET\r\n", out),
        Reply::ScheduleSet => word("SCHEDULE_SET\r\n", out),
        Reply::DeadLettered(tube) => {
            word("DEAD_LETTERED ", out);
            word(tube, out);
            word("\r\n", out);
        }
        Reply::NotFound => word("NOT_FOUND\r\n", out),
        Reply::Batched(done, count, missing) => batch(done, count, missing, out),
        Reply::NotIgnored => word("NOT_IGNORED\r\n", out),
        Reply::DeadlineSoon => word("DEADLINE_SOON\r\n", out),
        Reply::TimedOut => word("TIMED_OUT\r\n", out),
        Reply::Draining => word("DRAINING\r\n", out),
        Reply::OutOfMemory => word("OUT_OF_MEMORY\r\n", out),
        Reply::InternalError => word("INTERNAL_ERROR\r\n", out),
        Reply::Authenticated => word("AUTHENTICATED\r\n", out),
        Reply::NotAuthorized => word("NOT_AUTHORIZED\r\n", out),
        Reply::Refused(refusal) => word(refusal_line(refusal), out),
    }
}

/// Appends the line of a [`Reply::Yaml`] whose document has `size` bytes. The document must follow,
/// and then [`encode_document_end`].
pub fn encode_document_begin(size: usize, out: &mut Vec<u8>) {
    number(b"OK ", size as u64, out);
}

/// Appends the end of a document or a body.
pub fn encode_document_end(out: &mut Vec<u8>) {
    out.extend_from_slice(CRLF);
}

/// Appends the line of a [`Reply::Reserved`] or [`Reply::Found`], or the lines of a
/// [`Reply::ReservedBatch`] of one job, whose body has `size` bytes. The body
/// must follow, and then [`encode_document_end`].
pub fn encode_body_begin(shown: Shown<'_>, id: JobId, size: usize, out: &mut Vec<u8>) {
    match shown {
        Shown::Reserved => word("RESERVED ", out),
        Shown::Found => word("FOUND ", out),
        Shown::Batch(tube) => {
            number(b"RESERVED_BATCH ", 1, out);
            return batch_job_begin(id, tube, size, out);
        }
    }
    push_u64(out, id.0);
    number(b" ", size as u64, out);
}

fn refusal_line(refusal: Refusal) -> &'static str {
    match refusal {
        Refusal::BadFormat => "BAD_FORMAT\r\n",
        Refusal::UnknownCommand | Refusal::Http => "UNKNOWN_COMMAND\r\n",
        Refusal::JobTooBig => "JOB_TOO_BIG\r\n",
        Refusal::ExpectedCrlf => "EXPECTED_CRLF\r\n",
        Refusal::OutOfMemory => "OUT_OF_MEMORY\r\n",
    }
}

fn word(line: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(line.as_bytes());
}

fn number<const SIZE: usize>(word: &[u8; SIZE], number: u64, out: &mut Vec<u8>) {
    let mut line = Backwards::new();
    line.word(CRLF);
    line.number(number);
    line.word(word);
    out.extend_from_slice(line.bytes());
}

fn name(word: &str, name: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(word.as_bytes());
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(CRLF);
}

// Replies of extended commands are not inlined into `encode`: each other reply would pay for them.
#[inline(never)]
fn reserved_batch(jobs: &[BatchJob<'_>], out: &mut Vec<u8>) {
    let size = |job: &BatchJob<'_>| job.tube.len() + job.body.len() + 2 * NUMBER_SIZE_MAX + 10;
    // Reserved at once: growing step by step might end with twice the size.
    out.reserve(jobs.iter().map(size).sum::<usize>() + 2 * NUMBER_SIZE_MAX);
    number(b"RESERVED_BATCH ", jobs.len() as u64, out);
    for job in jobs {
        batch_job_begin(job.id, job.tube, job.body.len(), out);
        out.extend_from_slice(job.body);
        encode_document_end(out);
    }
}

/// `JOB <id> <tube> <bytes>\r\n`
fn batch_job_begin(id: JobId, tube: &str, size: usize, out: &mut Vec<u8>) {
    word("JOB ", out);
    push_u64(out, id.0);
    word(" ", out);
    word(tube, out);
    number(b" ", size as u64, out);
}

/// Written where it belongs, and moved to make place for the line before it: its size is known only then.
#[inline(never)]
fn document(report: &Report, out: &mut Vec<u8>) {
    let begin = out.len();
    report.write(out);
    let end = out.len();
    number(b"OK ", (end - begin) as u64, out);
    out[begin..].rotate_left(end - begin);
    out.extend_from_slice(CRLF);
}

#[inline(never)]
fn jobs(page: &JobPage, out: &mut Vec<u8>) {
    let mut document = Vec::new();
    write_jobs(page, &mut document);
    sized(b"OK ", &document, out);
}

/// `<word> <count> <bytes>\r\n<list>\r\n`
#[inline(never)]
fn batch(done: Batched, count: u64, missing: &[JobId], out: &mut Vec<u8>) {
    let mut document = Vec::new();
    write_ids(missing, &mut document);
    word(
        match done {
            Batched::Deleted => "DELETED_BATCH ",
            Batched::Touched => "TOUCHED_BATCH ",
            Batched::Released => "RELEASED_BATCH ",
        },
        out,
    );
    push_u64(out, count);
    sized(b" ", &document, out);
}

/// `<word><id> <bytes>\r\n<body>\r\n`
fn job<const SIZE: usize>(word: &[u8; SIZE], id: JobId, body: &[u8], out: &mut Vec<u8>) {
    let mut line = Backwards::new();
    line.word(CRLF);
    line.number(body.len() as u64);
    line.word(b" ");
    line.number(id.0);
    line.word(word);
    behind(line.bytes(), body, out);
}

/// `<word><bytes>\r\n<data>\r\n`
fn sized<const SIZE: usize>(word: &[u8; SIZE], data: &[u8], out: &mut Vec<u8>) {
    let mut line = Backwards::new();
    line.word(CRLF);
    line.number(data.len() as u64);
    line.word(word);
    behind(line.bytes(), data, out);
}

/// Data behind the line that says its size.
#[inline(always)]
fn behind(line: &[u8], data: &[u8], out: &mut Vec<u8>) {
    // Reserved at once: growing step by step might end with twice the size.
    out.reserve(line.len() + data.len() + CRLF.len());
    out.extend_from_slice(line);
    out.extend_from_slice(data);
    out.extend_from_slice(CRLF);
}

#[cfg(test)]
mod tests {
    use super::super::{Cursor, PolicyStats};
    use super::*;

    #[test]
    fn g46_a_body_that_comes_in_pieces_begins_and_ends_as_one_in_one_piece() {
        let (id, body) = (JobId(7), &b"hello"[..]);
        let tube = "mail";
        let job = BatchJob { id, tube, body };
        for (shown, reply) in [
            (Shown::Reserved, Reply::Reserved(id, body)),
            (Shown::Found, Reply::Found(id, body)),
            (Shown::Batch(tube), Reply::ReservedBatch(&[job])),
        ] {
            let (mut whole, mut parts) = (Vec::new(), Vec::new());
            encode(&reply, &mut whole);
            encode_body_begin(shown, id, body.len(), &mut parts);
            parts.extend_from_slice(body);
            encode_document_end(&mut parts);
            assert_eq!(parts, whole);
        }
    }

    #[test]
    fn figures_come_behind_the_line_that_says_their_size() {
        let report = Report::Policy(Box::new(PolicyStats {
            tube: "mail".to_owned(),
            set_for: "mail".to_owned(),
            policy: String::new(),
            current_jobs: 1,
            current_bytes: 2,
            total_released: 3,
            total_ttr: 4,
            total_disconnected: 5,
            total_failed: 6,
            total_expired: 7,
            total_buried: 8,
            total_set_aside: 9,
            total_puts_refused: 10,
        }));
        let (mut out, mut text) = (b"KICKED\r\n".to_vec(), Vec::new());
        encode(&Reply::Report(&report), &mut out);
        report.write(&mut text);
        let text = String::from_utf8(text).unwrap();
        let wanted = format!("KICKED\r\nOK {}\r\n{text}\r\n", text.len());
        assert_eq!(String::from_utf8(out).unwrap(), wanted);
    }

    /// Every reply and its bytes, as `protocol.txt` has them.
    const REPLIES: [(Reply<'static>, &str); 41] = [
        (Reply::Authenticated, "AUTHENTICATED\r\n"),
        (Reply::NotAuthorized, "NOT_AUTHORIZED\r\n"),
        (Reply::Inserted(JobId(1)), "INSERTED 1\r\n"),
        (Reply::Exists(JobId(7)), "EXISTS 7\r\n"),
        (
            Reply::Inserted(JobId(u64::MAX)),
            "INSERTED 18446744073709551615\r\n",
        ),
        (Reply::Using("default"), "USING default\r\n"),
        (
            Reply::Reserved(JobId(7), b"hello"),
            "RESERVED 7 5\r\nhello\r\n",
        ),
        (Reply::Reserved(JobId(7), b""), "RESERVED 7 0\r\n\r\n"),
        (
            Reply::ReservedBatch(&[
                BatchJob {
                    id: JobId(7),
                    tube: "mail",
                    body: b"a\r\nb",
                },
                BatchJob {
                    id: JobId(u64::MAX),
                    tube: "default",
                    body: b"",
                },
            ]),
            "RESERVED_BATCH 2\r\nJOB 7 mail 4\r\na\r\nb\r\n\
             JOB 18446744073709551615 default 0\r\n\r\n",
        ),
        (
            Reply::Found(JobId(100), b"a\r\nb"),
            "FOUND 100 4\r\na\r\nb\r\n",
        ),
        (
            Reply::Yaml(b"---\n- default\n"),
            "OK 14\r\n---\n- default\n\r\n",
        ),
        (
            Reply::Batched(Batched::Deleted, 2, &[]),
            "DELETED_BATCH 2 7\r\n--- []\n\r\n",
        ),
        (
            Reply::Batched(Batched::Touched, 0, &[JobId(7), JobId(u64::MAX)]),
            "TOUCHED_BATCH 0 31\r\n---\n- 7\n- 18446744073709551615\n\r\n",
        ),
        (
            Reply::Batched(Batched::Released, u64::MAX, &[JobId(1)]),
            "RELEASED_BATCH 18446744073709551615 8\r\n---\n- 1\n\r\n",
        ),
        (Reply::Watching(10), "WATCHING 10\r\n"),
        (Reply::KickedCount(0), "KICKED 0\r\n"),
        (Reply::Kicked, "KICKED\r\n"),
        (Reply::Deleted, "DELETED\r\n"),
        (Reply::Released, "RELEASED\r\n"),
        (Reply::Buried, "BURIED\r\n"),
        (Reply::Touched, "TOUCHED\r\n"),
        (Reply::Paused, "PAUSED\r\n"),
        (Reply::Aborted, "ABORTED\r\n"),
        (Reply::Moved, "MOVED\r\n"),
        (Reply::Cleared(17), "CLEARED 17\r\n"),
        (Reply::PolicySet, "POLICY_SET\r\n"),
        (Reply::ScheduleSet, "SCHEDULE_SET\r\n"),
        (
            Reply::DeadLettered("mail-dead"),
            "DEAD_LETTERED mail-dead\r\n",
        ),
        (Reply::NotFound, "NOT_FOUND\r\n"),
        (Reply::NotIgnored, "NOT_IGNORED\r\n"),
        (Reply::DeadlineSoon, "DEADLINE_SOON\r\n"),
        (Reply::TimedOut, "TIMED_OUT\r\n"),
        (Reply::Draining, "DRAINING\r\n"),
        (Reply::OutOfMemory, "OUT_OF_MEMORY\r\n"),
        (Reply::InternalError, "INTERNAL_ERROR\r\n"),
        (Reply::Refused(Refusal::BadFormat), "BAD_FORMAT\r\n"),
        (
            Reply::Refused(Refusal::UnknownCommand),
            "UNKNOWN_COMMAND\r\n",
        ),
        (Reply::Refused(Refusal::JobTooBig), "JOB_TOO_BIG\r\n"),
        (Reply::Refused(Refusal::ExpectedCrlf), "EXPECTED_CRLF\r\n"),
        (Reply::Refused(Refusal::OutOfMemory), "OUT_OF_MEMORY\r\n"),
        (
            Reply::KickedCount(u64::MAX),
            "KICKED 18446744073709551615\r\n",
        ),
    ];

    #[test]
    fn every_reply_has_exactly_these_bytes() {
        for (reply, bytes) in REPLIES {
            let mut out = Vec::new();
            encode(&reply, &mut out);
            assert_eq!(out, bytes.as_bytes(), "{reply:?}");
        }
    }

    #[test]
    fn a_page_of_jobs_has_their_ids_and_sizes_and_where_the_next_one_begins() {
        let cursor = Cursor {
            id: JobId(8),
            key: -5,
            client: 0,
        };
        let reserved = Cursor {
            client: 3,
            ..cursor
        };
        for (jobs, next, document) in [
            (vec![], None, "---\nnext: 0\njobs: []\n"),
            (vec![], Some(reserved), "---\nnext: 8--5-3\njobs: []\n"),
            (
                vec![(JobId(7), 0), (JobId(8), 65_535)],
                Some(cursor),
                "---\nnext: 8--5-0\njobs:\n- id: 7\n  size: 0\n- id: 8\n  size: 65535\n",
            ),
        ] {
            let mut out = Vec::new();
            encode(&Reply::Jobs(&JobPage { jobs, next }), &mut out);
            let expected = format!("OK {}\r\n{document}\r\n", document.len());
            assert_eq!(String::from_utf8(out).unwrap(), expected);
        }
    }

    #[test]
    fn replies_are_appended_to_what_is_there() {
        let mut out = Vec::new();
        for (reply, _) in REPLIES {
            encode(&reply, &mut out);
        }
        assert_eq!(out, REPLIES.map(|(_, bytes)| bytes).concat().into_bytes());
    }

    #[test]
    fn a_body_may_hold_any_bytes() {
        let body: Vec<u8> = (0..=255).collect();
        let mut out = Vec::new();
        encode(&Reply::Found(JobId(3), &body), &mut out);
        assert_eq!(out, [b"FOUND 3 256\r\n", &body[..], b"\r\n"].concat());
    }
}
