//! The interfaces for programs that embed the queue.
//!
//! | where | what |
//! |---|---|
//! | `queue` | [`Queue`]: a handle for all threads, on an engine that has a thread of its own |
//! | `session` | [`Session`]: what a worker has: watched tubes and reserved jobs |
//! | `reserved` | [`Reserved`]: a job that is given back unless it is finished |
//! | `thread` | the engine's thread: its loop, its end |
//! | `turns` | a turn of that loop |
//! | `job_queue` | [`JobQueue`]: one session and no thread, for a program of one |
//!
//! All of them call the engine through [`crate::door`], as every caller does that is not a socket.

mod job_queue;
mod queue;
mod reserved;
mod session;
#[cfg(test)]
mod tests;
mod thread;
mod turns;

pub use self::job_queue::JobQueue;
pub use self::queue::Queue;
pub use self::reserved::{Finish, Reserved};
pub use self::session::Session;
