//! Guesses about a damaged record, used to find the next sound one and to name the affected job.

use super::record::{
    KIND_ATTRIBUTES, KIND_DELETE, KIND_KICK, KIND_MANIFEST, KIND_PAUSE, KIND_PUT, KIND_SETTING,
    KIND_SWITCH, KIND_UPDATE, attributes_size, setting_size, state_from_byte,
};
use super::{
    attributes, delete, entry, kick, manifest, pause, put, put_size, setting, switch, u16_at,
    u32_at, u64_at, update,
};
use crate::attributes::LIST_SIZE_MAX;
use crate::types::{JobId, SETTING_NAME_MAX, SETTING_SIZE_MAX, SettingClass};

/// Claim of a possibly damaged record about itself. None of it can be trusted: it only helps to
/// find the next sound record, and to name the job of a damaged one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Claim {
    /// The event of a job; `None` for records about no job.
    pub(crate) about: Option<(JobId, JobEvent)>,
    /// Bytes of the whole record.
    pub(crate) size: usize,
}

/// Event in a record about a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum JobEvent {
    /// It was put.
    Put,
    /// Its state changed.
    Update,
    /// It was deleted.
    Delete,
    /// It has other attributes.
    Attributes,
}

impl Claim {
    /// [`Claim::read`] looks at no more than this number of bytes.
    pub(crate) const SIZE_MAX: usize = update::SIZE;

    /// The record that would begin with `bytes`; `None` if no record begins with them.
    pub(crate) fn read(bytes: &[u8]) -> Option<Claim> {
        match *bytes.get(put::KIND)? {
            KIND_SETTING => Claim::of_setting(bytes),
            KIND_ATTRIBUTES => Claim::of_attributes(bytes),
            _ => Claim::of_version_1(bytes),
        }
    }

    fn of_setting(bytes: &[u8]) -> Option<Claim> {
        let fixed = bytes.get(..setting::SIZE)?;
        SettingClass::from_byte(fixed[setting::CLASS])?;
        let name_size = usize::from(fixed[setting::NAME_SIZE]);
        let value_size = u32_at(fixed, setting::VALUE_SIZE) as usize;
        let is_one = (1..=SETTING_NAME_MAX).contains(&name_size)
            && value_size <= SETTING_SIZE_MAX
            && fixed[setting::RESERVED] == 0;
        is_one.then(|| Claim {
            about: None,
            size: setting_size(name_size, value_size),
        })
    }

    fn of_attributes(bytes: &[u8]) -> Option<Claim> {
        let fixed = bytes.get(..attributes::SIZE)?;
        let list_size = usize::from(u16_at(fixed, attributes::LIST_SIZE));
        let is_zero =
            fixed[attributes::RESERVED] == 0 && u32_at(fixed, attributes::RESERVED_TOO) == 0;
        let is_one = list_size <= LIST_SIZE_MAX && is_zero;
        let id = JobId(u64_at(fixed, attributes::ID));
        is_one.then(|| Claim {
            about: Some((id, JobEvent::Attributes)),
            size: attributes_size(list_size),
        })
    }

    fn of_version_1(bytes: &[u8]) -> Option<Claim> {
        let about = |event| Some((JobId(u64_at(bytes, put::ID)), event));
        let fixed = match *bytes.get(put::KIND)? {
            KIND_PUT => put::SIZE,
            KIND_UPDATE => update::SIZE,
            KIND_DELETE => delete::SIZE,
            KIND_PAUSE => pause::SIZE,
            KIND_MANIFEST => manifest::SIZE,
            KIND_SWITCH => switch::SIZE,
            KIND_KICK => kick::SIZE,
            _ => return None,
        };
        if bytes.len() < fixed {
            return None;
        }
        let (kind, second) = (bytes[put::KIND], bytes[put::TUBE_SIZE]);
        if kind != KIND_UPDATE && bytes[put::RESERVED..put::ID] != [0, 0] {
            return None;
        }
        let tube = usize::from(second);
        let is_tube = (1..=crate::types::TUBE_NAME_MAX).contains(&tube);
        let entries = |at| (u32_at(bytes, at) as usize).checked_mul(entry::SIZE);
        match kind {
            KIND_PUT if is_tube => {
                let size = put_size(tube, u32_at(bytes, put::BODY_SIZE) as usize);
                Some(Claim {
                    about: about(JobEvent::Put),
                    size,
                })
            }
            KIND_UPDATE if state_from_byte(second).is_some() => Some(Claim {
                about: about(JobEvent::Update),
                size: fixed,
            }),
            KIND_DELETE if second == 0 => Some(Claim {
                about: about(JobEvent::Delete),
                size: fixed,
            }),
            KIND_PAUSE | KIND_KICK if is_tube => Some(Claim {
                about: None,
                size: fixed + tube,
            }),
            KIND_MANIFEST if second == 0 => Some(Claim {
                about: None,
                size: fixed.checked_add(entries(manifest::ENTRIES)?)?,
            }),
            KIND_SWITCH if second == 0 => {
                let size = fixed.checked_add(entries(switch::REMOVED)?)?;
                Some(Claim {
                    about: None,
                    size: size.checked_add(entries(switch::ADDED)?)?,
                })
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The claim of bytes that have this kind and this second field, and zeros in all other fields.
    fn claim(kind: u8, second: u8) -> Option<Claim> {
        let mut bytes = [0; 64];
        (bytes[put::KIND], bytes[put::TUBE_SIZE]) = (kind, second);
        assert_eq!(Claim::read(&bytes[..8]), None, "too short for any record");
        Claim::read(&bytes)
    }

    #[test]
    fn no_record_begins_with_a_tube_name_of_an_impossible_size() {
        for kind in [KIND_PUT, KIND_PAUSE, KIND_KICK] {
            for size in [1, 17, 200] {
                assert!(claim(kind, size).is_some(), "kind {kind}, {size} bytes");
            }
            for size in [0, 201, 255] {
                assert_eq!(claim(kind, size), None, "kind {kind}, {size} bytes");
            }
        }
        assert_eq!(
            claim(KIND_PUT, 17).map(|claim| claim.size),
            Some(put_size(17, 0))
        );
    }

    #[test]
    fn no_record_begins_with_a_byte_set_that_is_always_zero() {
        for kind in [KIND_DELETE, KIND_MANIFEST, KIND_SWITCH] {
            assert!(claim(kind, 0).is_some() && claim(kind, 1).is_none());
        }
        assert!(claim(KIND_UPDATE, 0).is_some() && claim(KIND_UPDATE, 3).is_none());
        let mut reserved = [0; 64];
        (reserved[put::KIND], reserved[put::TUBE_SIZE]) = (KIND_PUT, 1);
        assert!(Claim::read(&reserved).is_some());
        reserved[put::RESERVED] = 1;
        assert_eq!(Claim::read(&reserved), None);
        assert_eq!(claim(0, 0), None);
        assert!(claim(KIND_ATTRIBUTES, 0).is_some() && claim(KIND_ATTRIBUTES, 1).is_none());
    }

    #[test]
    fn no_record_begins_with_a_size_that_no_setting_and_no_attributes_have() {
        let setting = |name: u8, class, reserved, value: usize| {
            let mut bytes = [0; 64];
            (bytes[setting::KIND], bytes[setting::NAME_SIZE]) = (KIND_SETTING, name);
            (bytes[setting::CLASS], bytes[setting::RESERVED]) = (class, reserved);
            super::super::set_u32(&mut bytes, setting::VALUE_SIZE, value as u32);
            Claim::read(&bytes).map(|claim| claim.size)
        };
        let largest = setting(200, 3, 0, SETTING_SIZE_MAX);
        assert_eq!(largest, Some(setting_size(200, SETTING_SIZE_MAX)));
        assert_eq!(setting(1, 1, 0, SETTING_SIZE_MAX + 1), None);
        assert_eq!([0, 201].map(|name| setting(name, 1, 0, 5)), [None; 2]);
        assert_eq!([0, 5].map(|class| setting(1, class, 0, 5)), [None; 2]);
        assert_eq!(setting(1, 1, 1, 5), None);
        let attributes = |size: usize| {
            let mut bytes = [0; 64];
            bytes[attributes::KIND] = KIND_ATTRIBUTES;
            bytes[attributes::LIST_SIZE..][..2].copy_from_slice(&(size as u16).to_le_bytes());
            Claim::read(&bytes).map(|claim| claim.size)
        };
        let largest = attributes(LIST_SIZE_MAX);
        assert_eq!(largest, Some(attributes_size(LIST_SIZE_MAX)));
        assert_eq!(attributes(LIST_SIZE_MAX + 1), None);
    }
}
