//! The faces for programs that embed the queue.

mod job_queue;

pub use self::job_queue::JobQueue;
