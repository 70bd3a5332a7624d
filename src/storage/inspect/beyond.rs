//! What a log says beyond plain jobs and pauses: the attributes of jobs, and settings.
//!
//! Only places are kept, and the tube of a moved job. Lists and values are read from the log on
//! demand, and checked again then.

use std::collections::BTreeMap;

use super::Inspection;
use crate::storage::disk::ReadFile;
use crate::storage::error::OpenError;
use crate::storage::format::{Record, attributes_size, setting_size};
use crate::storage::log::files::Files;
use crate::types::{JobId, Place, SettingClass};

/// The last attributes of a job.
#[derive(Debug, Clone, Copy)]
pub(super) struct Attributed {
    pub(super) place: Place,
    pub(super) list_size: u16,
    /// The number of the tube that the job was moved to.
    pub(super) tube: Option<u32>,
}

impl Attributed {
    /// Bytes of the record.
    pub(super) fn size(&self) -> usize {
        attributes_size(self.list_size.into())
    }
}

/// The last record about a setting; one without a value removes it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Set {
    pub(super) place: Place,
    pub(super) value_size: u32,
}

/// Which setting.
pub(super) type SettingKey = (SettingClass, Box<str>);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Beyond {
    pub(super) attributed: BTreeMap<JobId, Attributed>,
    pub(super) settings: BTreeMap<SettingKey, Set>,
}

impl Beyond {
    /// The job has these attributes from now on.
    pub(super) fn attribute(
        &mut self,
        files: &mut Files<dyn ReadFile>,
        id: JobId,
        attributed: Attributed,
    ) {
        files.keep(attributed.place, attributed.size());
        if let Some(before) = self.attributed.insert(id, attributed) {
            files.free(before.place, before.size());
        }
    }

    /// The job is gone.
    pub(super) fn forget(&mut self, files: &mut Files<dyn ReadFile>, id: JobId) {
        if let Some(before) = self.attributed.remove(&id) {
            files.free(before.place, before.size());
        }
    }

    /// The last record about a setting.
    pub(super) fn setting(&self, class: SettingClass, name: &str) -> Option<&Set> {
        let key: SettingKey = (class, name.into());
        self.settings.get(&key)
    }

    /// The same, to change it.
    pub(super) fn setting_mut(&mut self, class: SettingClass, name: &str) -> Option<&mut Set> {
        let key: SettingKey = (class, name.into());
        self.settings.get_mut(&key)
    }

    /// The setting has this value from now on.
    pub(super) fn set(
        &mut self,
        files: &mut Files<dyn ReadFile>,
        (class, name): (SettingClass, &str),
        set: Set,
    ) {
        let size = |set: &Set| setting_size(name.len(), set.value_size as usize);
        files.keep(set.place, size(&set));
        if let Some(before) = self.settings.insert((class, name.into()), set) {
            files.free(before.place, size(&before));
        }
    }
}

/// A setting as the log has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettingRecord {
    /// What it is about.
    pub class: SettingClass,
    /// Its name.
    pub name: String,
    /// Its value, at least a byte.
    pub value: Vec<u8>,
}

impl Inspection {
    /// The settings in the log, by class and name, each read when it is its turn.
    pub fn settings(&self) -> impl Iterator<Item = Result<SettingRecord, OpenError>> {
        let set = self.index.beyond.settings.iter();
        set.filter(|(_, set)| set.value_size > 0)
            .map(|((class, name), set)| self.read_setting(*class, name, set))
    }

    /// The classes and names of the settings in the log.
    pub(crate) fn setting_names(&self) -> impl Iterator<Item = (SettingClass, String)> {
        let set = self.index.beyond.settings.iter();
        set.filter(|(_, set)| set.value_size > 0)
            .map(|((class, name), _)| (*class, name.clone().into_string()))
    }

    fn read_setting(
        &self,
        class: SettingClass,
        name: &str,
        set: &Set,
    ) -> Result<SettingRecord, OpenError> {
        let size = setting_size(name.len(), set.value_size as usize);
        self.with_record(set.place, size, &mut Vec::new(), |record| match *record {
            Record::Setting { value, .. } => Some(SettingRecord {
                class,
                name: name.to_owned(),
                value: value.to_vec(),
            }),
            _ => None,
        })
    }

    /// Read the attributes of a job and pass them to `take`; `None` without any.
    pub(super) fn with_attributes<T>(
        &self,
        id: JobId,
        take: impl FnOnce(&Record<'_>, &[u8]) -> T,
    ) -> Result<Option<T>, OpenError> {
        let Some(found) = self.index.beyond.attributed.get(&id) else {
            return Ok(None);
        };
        let taken =
            self.with_record(
                found.place,
                found.size(),
                &mut Vec::new(),
                |record| match *record {
                    Record::Attributes { list, .. } => Some(take(record, list)),
                    _ => None,
                },
            )?;
        Ok(Some(taken))
    }
}
