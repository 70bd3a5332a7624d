//! The questions that the copying asks of the queue, which alone knows which records are alive.

use crate::storage::format::Record;
use crate::types::{JobId, Place, SegmentId, SettingClass};

/// Subject of a record: enough to ask whether it is alive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subject {
    /// The put of a job.
    Put(JobId),
    /// An update of a job.
    Update(JobId),
    /// A delete of a job that was put into this segment.
    Delete(SegmentId),
    /// The attributes of a job.
    Attributes(JobId),
    /// A pause of a tube.
    Pause(String),
    /// A setting of the log, or its removal.
    Setting(SettingClass, String),
    /// The log's own business, which the newest segment has taken over.
    Log,
}

impl Subject {
    pub(super) fn of(record: &Record<'_>) -> Subject {
        match record {
            Record::Put { id, .. } => Subject::Put(*id),
            Record::Update { id, .. } => Subject::Update(*id),
            Record::Delete { put_segment, .. } => Subject::Delete(*put_segment),
            Record::Attributes { id, .. } => Subject::Attributes(*id),
            Record::Pause { tube, .. } => Subject::Pause((*tube).to_owned()),
            Record::Setting { class, name, .. } => Subject::Setting(*class, (*name).to_owned()),
            Record::Kick { .. } | Record::Manifest { .. } | Record::Switch { .. } => Subject::Log,
        }
    }
}

/// A record, for the question whether it is alive.
pub(crate) type Asked = (Place, Subject);

/// The queue's index, as the log needs it to move records.
pub trait Index {
    /// Whether the index points at the record at `place`.
    fn is_live(&self, subject: &Subject, place: Place) -> bool;
    /// Note that the record at `from` lies at `to` now. `false` if the index no longer pointed at
    /// it.
    fn moved(&mut self, subject: &Subject, from: Place, to: Place) -> bool;
}
