//! Continuous archive: the durable log goes to an object store as it grows, and comes back from it.
//!
//! An archive is a **chain** of objects, numbered from 1 on and never changed: each is put only if
//! its number is free, so of two writers one finds the number taken, and stops. A link holds durable
//! bytes of the log, or the list of the files of a **base**, or says that a writer begins, or that
//! there is a gap. A restore takes a base and applies the records of the links after it.
//!
//! | file | question |
//! |---|---|
//! | `store` | what does it need of an object store? |
//! | `object`, `local` (feature `archive`) | how do real stores and directories answer that? |
//! | `keys` | which keys open what is encrypted? |
//! | `seal` | which bytes has an object that is compressed or encrypted? |
//! | `sealed` | how do writers and readers not know of that? |
//! | `unopened` | what can be said of an archive without its keys? |
//! | `sim` | what may a network and a store do to a writer? |
//! | `format` | which names and bytes do objects have? |
//! | `writer` | what is put next, and what if that fails? |
//! | `claims` | which claims has the server of this directory made? |
//! | `lead` | may a member of a cluster claim the chain? |
//! | `base` | how does a whole log get into the store while it is being written? |
//! | `flight` | how are several reads under way at the same time? |
//! | `ahead` | how do objects that are read at the same time come in order? |
//! | `reader` | how is read from a store that may fail for a while? |
//! | `joined` | which bytes does an object of several links have? |
//! | `links` | which object is a link read from? |
//! | `levels` | how do many small objects become a few large ones? |
//! | `chain` | which links are there, and which are faulty? |
//! | `course` | which links follow a base, and where does that end? |
//! | `apart` | which states stay before the beginning of a chain? |
//! | `labels` | which base has which name, and which are pinned? |
//! | `order` | which base was asked for, and how far is it? |
//! | `survey` | what of an archive can be restored, and what cannot? |
//! | `moment` | which links does a time or a position mean? |
//! | `frame_reader` | which records are in the bytes of links? |
//! | `chain_reader` | which link is next for who follows a chain? |
//! | `error` | why was nothing restored? |
//! | `restore` | how does a data directory come out of it? |
//! | `expire` | what may be removed, and in which order? |
//! | `thinning` | which bases stay of each day and each week? |
//! | `forget` | how does the archive of one log go? |
//! | `refill` | what if a server starts on an empty directory, and which archive does it take? |
//! | `follow` | how does a copy keep up with an archive, begin again, and take over? |
//! | `standby` | when is that called, and what does it report? |
//! | `joiner` | when are links joined, and what is reported of that? |
//! | `work` | when is the writer called, and what is told of that? |
//! | `report` | what is known of the archive, for everyone who asks? |
//! | `thread` | which thread does that, and how does it end? |
//! | `turns` | what if the log is that of a member, which leads now and follows then? |
//!
//! Invariants:
//! * Only bytes below the durable position leave, and a base only when its end is durable.
//! * No object is overwritten, and none is removed but the probe, what is in a joined object that was
//!   read back, and by an expiry what is before a base that was read back.
//! * No expiry removes a pinned base, or a part of it.
//! * Of several archives of a log each has a writer of its own: none waits for another.
//! * The queue never waits for the archive: the bytes held for it are bounded, and bytes that could
//!   not be held are a gap, which the chain names.

mod ahead;
pub mod apart;
mod base;
pub mod chain;
mod chain_reader;
mod claims;
mod course;
mod error;
pub mod expire;
mod flight;
pub mod follow;
pub mod forget;
pub mod format;
mod frame_reader;
mod joined;
mod joiner;
mod keys;
pub mod labels;
mod lead;
pub mod levels;
mod links;
mod local;
mod moment;
mod object;
pub mod order;
pub mod reader;
mod refill;
mod report;
pub mod restore;
mod seal;
mod sealed;
#[cfg(any(test, feature = "sim"))]
mod sim;
pub mod standby;
mod store;
pub mod survey;
mod thinning;
mod thread;
mod turns;
pub mod unopened;
mod work;
mod writer;

#[cfg(test)]
mod agreement;
#[cfg(test)]
mod ahead_tests;
#[cfg(test)]
mod apart_tests;
#[cfg(test)]
mod cost_tests;
#[cfg(test)]
mod expire_tests;
#[cfg(test)]
mod histories;
#[cfg(test)]
mod levels_tests;
#[cfg(test)]
mod member_histories;
#[cfg(test)]
mod promises;
#[cfg(test)]
mod sealed_tests;
#[cfg(test)]
mod standby_histories;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod thinning_tests;
#[cfg(test)]
mod two_histories;

pub use self::claims::{Which, is_restored};
pub use self::error::RestoreError;
pub use self::joiner::Joins;
pub use self::keys::{KEY_SIZE, KEYS_MAX, Key, KeyId, KeySource};
pub use self::lead::Lead;
pub use self::levels::Levels;
pub use self::moment::Until;
pub use self::object::{check_place, dir_of, open};
pub use self::reader::{CONNECTIONS, CONNECTIONS_MAX, Reader, Wait, Waiter};
pub use self::refill::{Refilled, chosen_of, has_log, restore_if_empty};
pub use self::report::{LAG_MAX_NS, Report, Reporter};
pub use self::sealed::{Codec, LEVEL_DEFAULT, LEVELS, Sealed};
#[cfg(any(test, feature = "sim"))]
pub use self::sim::{Requests, SimStore};
pub use self::store::{Answer, Flight, Listed, Put, Store, Trouble, Want};
pub use self::thread::Archive;
pub use self::turns::Turns;
pub use self::writer::{Done, Failure, Figures, Sizes, Writer};
