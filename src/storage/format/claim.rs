//! What a damaged record may have been: guesses, for finding the next sound one and for naming the
//! job that was hit.

use super::record::{
    KIND_DELETE, KIND_KICK, KIND_MANIFEST, KIND_PAUSE, KIND_PUT, KIND_SWITCH, KIND_UPDATE,
    state_from_byte,
};
use super::{delete, entry, kick, manifest, pause, put, put_size, switch, u32_at, u64_at, update};
use crate::types::JobId;

/// What bytes that may be a damaged record say of themselves. None of it can be trusted: it serves
/// to find the next sound record, and to name the job that a damaged one was about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Claim {
    /// What happened to a job; `None` for records about no job.
    pub(crate) about: Option<(JobId, JobEvent)>,
    /// Bytes of the whole record.
    pub(crate) size: usize,
}

/// What a record about a job says of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum JobEvent {
    /// It was put.
    Put,
    /// Its state changed.
    Update,
    /// It was deleted.
    Delete,
}

impl Claim {
    /// The bytes that [`Claim::read`] looks at, at most.
    pub(crate) const SIZE_MAX: usize = update::SIZE;

    /// What a record that begins with `bytes` would be; `None` when no record begins so.
    pub(crate) fn read(bytes: &[u8]) -> Option<Claim> {
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
        if bytes.len() < fixed || bytes[put::RESERVED..put::ID] != [0, 0] {
            return None;
        }
        let (kind, second) = (bytes[put::KIND], bytes[put::TUBE_SIZE]);
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
