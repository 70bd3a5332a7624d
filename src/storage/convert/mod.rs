//! Logs made of other things, and other things made of logs. Each is written beside what is there
//! and gets its name when it is whole; nothing that is read is changed.
//!
//! | file | question |
//! |---|---|
//! | `build` | how does a new log in a new directory come all or not at all? |
//! | `load` | how does a log come from a list of jobs? |
//! | `backup` | how is a log in use copied, and restored? |
//! | `beanstalkd` | how are beanstalkd's files imported, and exported to? |
//! | `offline` | how does a log that is not in use lose its garbage? |

pub mod backup;
pub mod beanstalkd;
pub mod build;
pub mod load;
pub mod offline;
