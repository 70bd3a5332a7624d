//! Making logs from other data, and other data from logs. Each result is written next to what
//! exists and gets its name when it is complete; the input is never changed.
//!
//! | file | question |
//! |---|---|
//! | `build` | how is a new log made, all or nothing? |
//! | `load` | how is a log made from a list of jobs? |
//! | `backup` | how is a log in use copied, and restored? |
//! | `beanstalkd` | how are beanstalkd's files imported and exported? |
//! | `parts` | which files has a log in use, for a copy elsewhere? |
//! | `rebuild` | how is a log made of files and the records after them? |
//! | `offline` | how does a log that is not in use lose its garbage? |

pub mod backup;
pub mod beanstalkd;
pub mod build;
pub mod load;
pub mod offline;
pub mod parts;
pub mod rebuild;
